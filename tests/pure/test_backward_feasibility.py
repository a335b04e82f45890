"""What a backward's plan is refused for, with numbers, and what is named instead."""

from __future__ import annotations

import re

import pytest

from flashgen.generator import BackwardRequest, KernelSpec, PlanError, load_config, plan_backward, plan_entry
from flashgen.generator.backward_feasibility import accumulator_limit, may_spill, problem
from tests.pure.backward_plans import backward


@pytest.mark.parametrize(
    ("dims", "changes", "message"),
    [
        (128, {"block_m": 96}, "tile m: got 96; legal: 64 with split_roles, else 64, 80 or 128"),
        (256, {"block_m": 128, "split_roles": True}, "tile m: got 128 with split_roles; legal: 64 with split_roles"),
        (128, {"block_n": 96}, "tile n: got 96 without split_roles; legal: 64 with split_roles, 128 without"),
        (128, {"block_n": 128, "split_roles": True}, "tile n: got 128 with split_roles; legal: 64 with"),
        (128, {"consumer_warpgroups": 3}, "warpgroups: got 3; legal: 2"),
        (128, {"stages_q": 0}, "stages_q: got 0; legal: 1 or more"),
        (128, {"stages_do": 0}, "stages_do: got 0; legal: 1 or more"),
        (128, {"stages_ds": 1, "split_roles": False}, "stages_ds: got 1; legal: 2 or more without split_roles"),
        (128, {"dq_passes": 0}, "dq_passes: got 0; legal: 1 or more"),
        (128, {"dq_passes": 2, "split_roles": False}, "dq_passes: got 2 without split_roles; legal: 1"),
        (256, {"dq_passes": 3}, "dq_passes: got 3 for 128 and 128 columns of dq"),
        (256, {"stages_ds": 2, "split_roles": True}, "stages_ds: got 2 with split_roles; legal: 1"),
        (
            256,
            {"keys_in_registers": True, "split_roles": True},
            "keys_in_registers: got true with split_roles; legal: fal",
        ),
        (
            112,
            {"keys_in_registers": True},
            "tile 64x128 with keys_in_registers and head dim 112 needs 204 accumulator registers a thread; 196 are",
        ),
        (128, {"swizzle_qk": 48}, "swizzle qk: got 48; legal: 32, 64, 128 bytes"),
        (128, {"consumer_registers": 248}, "the split takes 66560, and a block owns 64512"),
        (64, {"split_roles": True, "swizzle_qk": 128}, "in chunks of 64, and head dim qk 64 has one"),
        (
            256,
            {"stages_q": 3},
            "needs 256000 bytes of shared memory; 232448 are available; nearest that fits: tile {m",
        ),
        (
            128,
            {"block_m": 128},
            "needs 264192 bytes of shared memory; 232448 are available; nearest that fits: tile {m: 64, n: 128}",
        ),
        (256, {"mask_loops": True, "split_roles": True}, "mask_loops: got true with split_roles; legal: false"),
        (256, {"scheduler": "dynamic", "split_roles": True}, "scheduler: got dynamic with split_roles; legal: single"),
        (256, {"scheduler": "dynamic"}, ", scheduler: single"),
        (64, {"scheduler": "static"}, "scheduler: got static; legal: single or dynamic"),
        (152, {"split_roles": False}, "needs 216 accumulator registers a thread; 208 are available of 240"),
        (136, {"split_roles": False, "mask_loops": False}, "needs 200 accumulator registers a thread; 196 are"),
    ],
)
def test_refusals(dims: int, changes: dict[str, object], message: str) -> None:
    with pytest.raises(PlanError) as caught:
        backward(dims, **changes)
    assert message in str(caught.value)


def test_a_deterministic_backward_keeps_the_order() -> None:
    spec = KernelSpec.backward(head_dim=128, deterministic=True)
    with pytest.raises(PlanError, match="keys_in_order: got false with deterministic; legal: true"):
        plan_backward(spec, BackwardRequest(keys_in_order=False))


def test_the_nearest_that_is_named_fits() -> None:
    for dims, changes in (
        (256, {"stages_q": 3}), (128, {"block_m": 128}), (152, {"split_roles": False}),
        (128, {"keys_in_registers": True}), (256, {"keys_in_registers": True}),
        (256, {"mask_loops": True}),
        (80, {"block_m": 128, "mask_loops": False}), (128, {"block_m": 80, "keys_in_registers": True}),
        (72, {"block_m": 128, "swizzle_qk": 128, "swizzle_v": 128}),
    ):  # fmt: skip
        with pytest.raises(PlanError) as caught:
            backward(dims, **changes)
        near = re.search(r"nearest that fits: tile (.*?), (split_roles.*)", str(caught.value))
        assert near is not None
        keys = "\n".join([f"tile: {near[1]}", *re.split(r", (?![^{]*})", near[2])])
        entry = load_config(f"kernel: attention_bwd\narch: sm90a\ndtype: bf16\nhead_dim: {dims}\n{keys}\n")[0]
        made = plan_entry(entry)
        assert problem(made) is None  # type: ignore[arg-type]
        named = dict(re.findall(r"(\w+): (true|false)", near[2]))
        assert ("swizzle" in near[2]) is ("swizzle_qk" in changes), "narrower ones are named where they are needed"
        opposite = {key: str(not value).lower() for key, value in changes.items() if isinstance(value, bool)}
        assert opposite.items() <= named.items(), "what was asked for and does not go with it"


def test_what_takes_no_room_is_not_named_among_what_would_fit() -> None:
    with pytest.raises(PlanError, match="nearest that fits") as caught:
        backward(256, stores_first=True, stages_q=3)
    assert "stores_first" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "late", "limit"),
    [
        ({"block_m": 64}, False, 208),  # 192 accumulators: P need not wait
        ({"block_m": 80}, True, 208),
        ({"block_m": 64, "mask_loops": False}, False, 196),
        ({"split_roles": True}, False, 196),
    ],
)
def test_a_loop_for_masked_blocks_and_a_late_p_leave_more_registers(
    changes: dict[str, object], late: bool, limit: int
) -> None:
    made = backward(128, **changes)
    assert (made.late_p, accumulator_limit(made)) == (late, limit)
    assert made.late_p == (made.accumulator_registers > 196)


def test_two_stages_of_narrow_pieces_take_registers_that_the_planner_leaves() -> None:
    """As the compiler was seen to: (stages of q, of dout) of 128 rows, by accumulators of 208."""
    for (qk, v), accumulators, stages in (
        ((80, 80), 208, (2, 1)), ((72, 80), 204, (2, 1)), ((80, 72), 204, (2, 1)), ((72, 72), 200, (2, 2)),
        ((64, 80), 200, (2, 2)), ((64, 96), 208, (2, 2)),
    ):  # fmt: skip
        for mask in ("full", "causal"):
            made = backward(qk, v, mask, block_m=128, block_n=128)
            assert (made.accumulator_registers, (made.stages_q, made.stages_do)) == (accumulators, stages)
            assert not may_spill(made)
    assert backward(72, 80).request == backward(72, 80, block_m=128, block_n=128).request, "nothing need be asked for"
    wide = backward(128, block_m=80, block_n=128, stages_q=2, stages_do=2)
    assert (wide.accumulator_registers, may_spill(wide)) == (208, False), "whole rows: it ships, and does not spill"


def test_what_may_spill_is_built_where_it_is_asked_for_and_named_nowhere() -> None:
    asked = backward(72, 80, block_m=128, block_n=128, stages_q=2, stages_do=2)
    assert may_spill(asked)
    assert backward(72, 80, stages_q=2, stages_do=2).block_m == 64, "with the tile left open, another"
    with pytest.raises(PlanError, match=r"nearest that fits: tile {m: 128, n: 128}, .* stages_q: 2, stages_do: 1, dq"):
        backward(72, 80, block_m=128, block_n=128, swizzle_qk=128, swizzle_v=128)


def test_keys_in_registers_are_operands_and_leave_no_more() -> None:
    plans = [backward(96, keys_in_registers=keys, scheduler="single") for keys in (True, False)]
    assert [accumulator_limit(made) for made in plans] == [196, 208]
    assert backward(136, split_roles=False).late_p, "200 accumulators"
    assert backward(72).late_p


@pytest.mark.parametrize(
    ("rest", "tile"), [("stages_q: 1", "64x128"), ("tile: {m: 80, n: 128}", "80x128")], ids=["64 rows", "80 rows"]
)
def test_keys_that_do_not_fit_in_registers_are_refused_at_their_key(rest: str, tile: str) -> None:
    """Of 80 rows too, which fill all that is left without them."""
    text = f"kernel: attention_bwd\narch: sm90a\ndtype: bf16\nhead_dim: 128\n{rest}\nkeys_in_registers: true\n"
    with pytest.raises(PlanError, match=rf"^\(text\):6: tile {tile} with keys_in_registers") as caught:
        plan_entry(load_config(text)[0])
    assert caught.value.key == "keys_in_registers"
