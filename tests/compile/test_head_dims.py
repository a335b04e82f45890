"""What nobody ships compiles to a kernel fit to use, too: the planner's own plan of every head dim, and of some pairs.

One test a kernel; ``-n`` compiles them in parallel, and the user's cache serves. What ships is test_configs.py's.
"""

from __future__ import annotations

import pytest

from flashgen.generator import KernelSpec, load_config, shipped_configs
from flashgen.kernel import build_kernel

SHIPPED = {entry.spec.any_length for path in shipped_configs() for entry in load_config(path)}
SHIPPED_DIMS = {(spec.head_dim_qk, spec.head_dim_v) for spec in SHIPPED}
MASKS = ("causal", "full")
DIMS = [d for d in range(8, 257, 8) if (d, d) not in SHIPPED_DIMS]
# (72, 80) is where 128 query rows of a backward had a register too few, (192, 248) where a forward's tile for out had.
PAIRS = [(96, 128), (40, 72), (72, 80), (128, 64), (16, 256), (256, 64), (192, 248)]
BY_TURNS = [(dtype, deterministic) for deterministic in (False, True) for dtype in ("bf16", "fp16")]

pytestmark = pytest.mark.usefixtures("parsed_headers")


def specs() -> list[KernelSpec]:
    """Forwards in both masks; a backward of each, causal, but of pairs in either mask by turns."""
    found = []
    for index, (qk, v) in enumerate([*((d, d) for d in DIMS), *PAIRS]):
        dtype, deterministic = BY_TURNS[index // 2 % len(BY_TURNS)]
        masks = {mask: KernelSpec.forward(head_dim=qk, head_dim_v=v, dtype=dtype, mask=mask) for mask in MASKS}
        backward = masks[MASKS[index % 2] if qk != v else "causal"].backward_of(deterministic)
        found += [*masks.values(), backward]
    return found


@pytest.mark.parametrize("spec", specs(), ids=lambda spec: spec.name)
def test_the_planners_own_plan(spec: KernelSpec) -> None:
    built = build_kernel(spec)
    assert built.plan.origin == "model"
    assert built.resources.complaints == ()
    # Registers at launch are those of the whole block before setmaxnreg hands them out.
    assert built.resources.registers * built.plan.threads <= 65536


def test_with_what_ships_every_head_dim_is_compiled() -> None:
    assert {*DIMS, *(qk for qk, v in SHIPPED_DIMS if qk == v)} == set(range(8, 257, 8))
    assert SHIPPED.isdisjoint(specs())
    assert {(s.dtype, s.mask, s.op) for s in specs()} == {(s.dtype, s.mask, s.op) for s in SHIPPED}, "all kinds"
