"""Tiers by folder: pure (no CUDA), compile (NVRTC, no GPU), device (Hopper). One alone: ``pytest -m compile``."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

TIERS = {
    "pure": "needs neither CUDA nor a compiler",
    "compile": "compiles with NVRTC, without a GPU",
    "device": "runs kernels on a GPU with compute capability 9.0",
}
HERE = Path(__file__).resolve().parent


def pytest_configure(config: pytest.Config) -> None:
    for name, meaning in TIERS.items():
        config.addinivalue_line("markers", f"{name}: {meaning}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if not item.path.is_relative_to(HERE):
            continue
        tier = item.path.relative_to(HERE).parts[0]
        if tier in TIERS:
            item.add_marker(tier)
        if tier == "device" and (reason := no_device()):
            item.add_marker(pytest.mark.skip(reason=reason))


@functools.cache
def no_device() -> str:
    """Why the device tests cannot run here, or an empty string."""
    import torch

    if not torch.cuda.is_available():
        return "no GPU that this PyTorch can use"
    capability = torch.cuda.get_device_capability()
    return "" if capability == (9, 0) else f"the GPU has compute capability {capability}, not (9, 0)"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many shipped kernels compiled, and how many have run on a GPU as this very machine code."""
    found = [
        dict(report.user_properties)
        for report in terminalreporter.stats.get("passed", [])
        if any(key == "kernel" for key, _ in report.user_properties)
    ]
    if found:
        verified = sum(facts["verified"] for facts in found)
        terminalreporter.write_line(f"shipped kernels: {len(found)} compiled, {verified} of them verified on a GPU")
