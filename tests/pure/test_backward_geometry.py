"""How a backward's problem is cut into thread blocks, and how many heads run side by side."""

from __future__ import annotations

import pytest

from flashgen.backward_geometry import backward_geometry
from flashgen.errors import ArgumentError
from flashgen.generator import BackwardRequest, KernelSpec, plan_backward


def test_geometry_goes_beyond_65535_and_says_where_it_ends() -> None:
    made = plan_backward(KernelSpec.backward(head_dim=64), BackwardRequest(scheduler="single"))
    many = backward_geometry(made, (70_000, 300, 4, 64), (70_000, 9, 2, 64), 1.0, 132)
    assert (many.row_blocks, many.grid) == (-(-300 // made.block_m) * 280_000, 140_000)
    assert 1 <= many.heads_per_group <= 64
    for q, k in (
        ((1 << 30, 1, 4, 64), (1 << 30, 1, 4, 64)),
        ((1, 1, 1, 64), (1, (1 << 31) + 5, 1, 64)),
        ((1, 1 << 30, 1, 64), (1, 1 << 30, 1, 64)),
    ):
        with pytest.raises(ArgumentError, match="at most 2147418112"):
            backward_geometry(made, q, k, 1.0, 132)


@pytest.mark.parametrize(("batch", "expected"), [(70_000, 132), (1, 2), (66, 132), (65, 130)])
def test_a_persistent_grid_has_no_more_blocks_than_the_gpu_and_none_without_work(batch: int, expected: int) -> None:
    made = plan_backward(KernelSpec.backward(head_dim=64), BackwardRequest(scheduler="dynamic"))
    assert backward_geometry(made, (batch, 300, 4, 64), (batch, 9, 2, 64), 1.0, 132).grid == expected


@pytest.mark.parametrize(
    ("mask", "heads", "seqlen", "head_dim", "expected"),
    [
        ("full", 32, 4096, 128, 16),  # 8 fit in L2 (4 MiB each); 16 wait less for each other
        ("full", 16, 512, 128, 16),  # no more than there are
        ("full", 256, 512, 128, 16),  # as fast as any more
        ("full", 18, 4096, 128, 9),  # two groups, not one of 16 and one of 2
        ("full", 17, 4096, 128, 9),  # no divisor near 16: groups as even as they come
        ("full", 32, 4096, 256, 4),  # split_roles: what fits in L2 (8 MiB each) and no more
        ("causal", 32, 4096, 128, 8),  # uneven blocks: what fits in L2 and no more
        ("causal", 32, 65_536, 128, 1),  # one at least
        ("causal", 256, 512, 128, 8),  # though 64 fit
        ("full", 256, 512, 256, 16),
        ("causal", 256, 512, 256, 16),  # split_roles: of three quarters of L2
        ("causal", 128, 1024, 256, 8),  # 12 do, and 8 divide
        ("causal", 32, 4096, 256, 4),  # three quarters hold 2, all of it 4
        ("causal", 12, 4096, 128, 6),
    ],
)  # fmt: skip
def test_groups_of_heads_in_a_fixed_order(mask: str, heads: int, seqlen: int, head_dim: int, expected: int) -> None:
    made = plan_backward(KernelSpec.backward(head_dim=head_dim, mask=mask, deterministic=True))
    shape = (1, seqlen, heads, head_dim)
    assert backward_geometry(made, shape, shape, 1.0, 132).heads_per_group == expected
    shared = backward_geometry(made, (1, seqlen, 2 * heads, head_dim), shape, 1.0, 132).heads_per_group
    assert shared <= expected, "two query heads of a key head take twice the room"


def test_in_any_order_few_heads_may_take_more_than_l2() -> None:
    made, shape = plan_backward(KernelSpec.backward(head_dim=128, mask="causal")), (1, 8192, 32, 128)
    steady = plan_backward(KernelSpec.backward(head_dim=128, mask="causal", deterministic=True))
    assert backward_geometry(made, shape, shape, 1.0, 132).heads_per_group == 8
    for seqlen, expected in ((16_384, 8), (32_768, 4)):  # four times L2 (16 and 32 MiB each)
        longer = (1, seqlen, 32, 128)
        assert backward_geometry(made, longer, longer, 1.0, 132).heads_per_group == expected
    roles = plan_backward(KernelSpec.backward(head_dim=256, mask="causal"))
    wide = (1, 8192, 32, 256)  # 16 MiB each
    assert backward_geometry(roles, wide, wide, 1.0, 132).heads_per_group == 4, "with roles no more than twice"
    ordered = plan_backward(KernelSpec.backward(head_dim=128, mask="causal"), BackwardRequest(keys_in_order=True))
    assert backward_geometry(steady, shape, shape, 1.0, 132).heads_per_group == 4
    assert backward_geometry(ordered, shape, shape, 1.0, 132).heads_per_group == 4
