"""What the device tests share: every kernel they use compiled at once beforehand, and the --speed option.

All of it: ``pytest tests/device``. Timings too, on a GPU that nobody else uses: ``pytest tests/device --speed``.
"""

from __future__ import annotations

import os

import pytest

from flashgen.build import build_all
from flashgen.generator import ConfigEntry, KernelPlan


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--speed", action="store_true", help="also run the device tests that measure time")


@pytest.fixture(scope="session", autouse=True)
def kernels_built(request: pytest.FixtureRequest) -> None:
    """Compile what ``kernels()`` of the selected modules names into the cache, on all cores. Tests tell what failed."""
    modules = {module for item in request.session.items if (module := getattr(item, "module", None)) is not None}
    wanted: dict[KernelPlan, None] = {plan: None for module in modules for plan in getattr(module, "kernels", list)()}
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    jobs = max(1, len(os.sched_getaffinity(0)) // workers)
    entries = [ConfigEntry(plan.spec, plan.request, "tests/device") for plan in wanted]
    result = build_all(entries, None, jobs, strict=False)
    for entry, error in result.failed:
        print(f"{entry.spec.name}: {error}")
