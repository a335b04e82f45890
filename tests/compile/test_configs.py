"""Every shipped config compiles to a kernel fit to ship. One test a kernel; ``-n`` compiles them in parallel.

The user's cache serves, so a second run is quick. The C++ side static_asserts that the shared memory it uses is the
plan's to the byte, so a wrong model does not compile.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from flashgen.generator import ConfigEntry, KernelSpec, load_config, shipped_configs
from flashgen.kernel import build_kernel
from flashgen.receipts import read_receipts

ENTRIES = [entry for path in shipped_configs() for entry in load_config(path)]
HEAD_DIMS = [32, 40, 64, 72, 80, 96, 112, 128, 160, 192, 224, 256]

pytestmark = pytest.mark.usefixtures("parsed_headers")


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.spec.name)
def test_shipped_kernel(entry: ConfigEntry, record_property: Callable[[str, object], None]) -> None:
    built = build_kernel(entry.spec, entry.request, origin=entry.origin)
    assert built.resources.complaints == ()
    assert built.name.encode() in built.cubin
    # Registers at launch are those of the whole block before setmaxnreg hands them out.
    assert built.resources.registers * built.plan.threads <= 65536
    receipt = read_receipts().get(built.name)
    record_property("kernel", built.name)
    record_property("verified", receipt is not None and receipt.sha256 == built.sha256)


def test_what_ships() -> None:
    shapes = [(d, d) for d in HEAD_DIMS] + [(192, 128)]
    forwards = [
        KernelSpec.forward(head_dim=qk, head_dim_v=v, dtype=dtype, mask=mask)
        for qk, v in shapes for dtype in ("bf16", "fp16") for mask in ("full", "causal")
    ]  # fmt: skip
    backwards = [forward.backward_of(deterministic) for forward in forwards for deterministic in (False, True)]
    assert {*forwards, *backwards} <= {entry.spec.any_length for entry in ENTRIES}
    assert len({e.spec for e in ENTRIES}) == len({e.spec.name for e in ENTRIES}) == len(ENTRIES)
