"""The search for a backward on a made-up machine: all stages of the best tiles, and plans by the number of keys."""

from __future__ import annotations

from pathlib import Path

import pytest

from flashgen.bench_grid import Shape
from flashgen.generator import BackwardPlan, BackwardRequest, KernelSpec, load_config, plan_backward, plan_entry
from flashgen.generator.paths import ROOT
from flashgen.generator.search import label
from flashgen.tune import Search
from flashgen.tune_report import ranged_plan, to_config
from flashgen.tune_space import Options, family_of, first_round
from flashgen.tune_state import TuneState
from flashgen.tune_trials import LostGpuError
from tests.pure.fake_tuner import BACKWARD, SMALL, Fake, backward_milliseconds, shape


def machine(**tricks: object) -> Fake:
    return Fake(backward_milliseconds, **tricks)


def search(
    fake: Fake, *seqlens: int, spec: KernelSpec = BACKWARD, state: TuneState | None = None, options: Options = SMALL
) -> Search:
    return Search(spec, [shape(n, "bwd") for n in seqlens], fake, state or TuneState(None), options)


def test_tiles_come_first_and_then_all_stages_of_the_best() -> None:
    fake = machine()
    whole = Options(budget=300, keep=3, repetitions=3, finals=4)
    found = search(fake, 8192, options=whole)
    (only,) = found.run()
    assert (only.plan.stages_q, only.plan.stages_do, only.plan.split_roles) == (3, 1, False)
    assert only.plan.stores_first, "as today: it does not matter on this machine"
    first = {(made.block_m, made.block_n, made.persistent) for made, _, _ in fake.timed[:3]}
    every = {(80, 128, False), (64, 128, False), (64, 64, False)}
    assert first == every, "of each tile one plan, before any other stages of today's 80 rows, which is persistent"
    everything = {made for base in first_round(BACKWARD, [], 10**6) for made in (base, *family_of(base))}
    assert set(found.tried) == everything
    assert len(everything) <= whole.budget
    assert only.found[0].verified
    assert {made for made, _, repetitions in fake.timed if repetitions == whole.finals} <= set(fake.verified)


def test_each_length_gets_its_own_plan_and_neighbours_share_one() -> None:
    ranges = search(machine(), 512, 1024, 4096).run()
    assert [(each.first, each.below) for each in ranges] == [(0, 2560), (2560, None)]
    assert [(each.plan.stages_q, each.plan.stages_do) for each in ranges] == [(1, 3), (3, 1)]
    assert [[found.shape.seqlen_k for found in each.found] for each in ranges] == [[512, 1024], [4096]]
    found = [found.measured.over_incumbent for each in ranges for found in each.found]
    assert found == pytest.approx([1 / 0.90] * 3)
    assert [ranged_plan(each).name for each in ranges] == [f"{BACKWARD.name}_below2560", f"{BACKWARD.name}_from2560"]


def test_one_plan_that_is_nearly_best_on_all_lengths_serves_them() -> None:
    def nearly(made: BackwardPlan, at: Shape) -> float:
        if made.block_m != 64 or not (made.stores_first and made.mask_loops) or made.keys_in_order:
            return 1.1
        return 0.905 if (made.stages_q, made.stages_do) == (3, 3) else backward_milliseconds(made, at)

    (only,) = search(Fake(nearly), 512, 4096).run()
    assert (only.first, only.below) == (0, None)
    assert (only.plan.stages_q, only.plan.stages_do) == (3, 3), "best on neither length"


def test_incumbents_by_the_number_of_keys_stay_where_each_is_best() -> None:
    """Today 80 rows serve long sequences and 64 short ones: one plan for both would make one of them slower."""

    def today(made: BackwardPlan, at: Shape) -> float:
        return 1.0 if made.block_m == (80 if at.seqlen_k > 3000 else 64) and not made.split_roles else 1.2

    found = search(Fake(today), 512, 8192)
    ranges = found.run()
    assert [each.plan for each in ranges] == [found.incumbents[shape(n, "bwd")] for n in (512, 8192)]
    assert [each.plan.block_m for each in ranges] == [64, 80]


def test_a_budget_keeps_the_nearest_stages() -> None:
    found = search(machine(), 4096, options=Options(budget=6, keep=1, repetitions=3, finals=4))
    (only,) = found.run()
    assert len(found.tried) == 6
    today = found.incumbents[shape(4096, "bwd")]
    assert (today.stages_q, today.stages_do) == (2, 2)
    assert all(made.stages_q == 2 or made.stages_do == 2 for made in found.tried)
    assert only.plan == today, "nothing that was tried is better"


def test_the_incumbent_stays_unless_it_is_beaten_clearly() -> None:
    def nearly(made: BackwardPlan, _: object) -> float:
        return 0.997 if made.stages_q == 3 else 1.0

    found = search(Fake(nearly), 8192, 16384)
    (only,) = found.run()
    assert only.plan == plan_backward(BACKWARD)
    (better,) = search(Fake(lambda made, at: nearly(made, at) ** 2), 8192, 16384).run()
    assert better.plan.stages_q == 3


@pytest.mark.parametrize("trick", ["wrong", "spills", "broken", "fails"])
def test_what_is_wrong_never_wins(trick: str) -> None:
    fake = machine(**{trick: lambda made: (made.stages_q, made.stages_do) == (1, 3)})
    found = search(fake, 512)
    (only,) = found.run()
    assert (only.plan.stages_q, only.plan.stages_do) == (3, 3), "the best but for what is wrong"
    assert only.found[0].verified
    assert any((made.stages_q, made.stages_do) == (1, 3) for made in found.trials.refused)


def test_a_kernel_that_hangs_is_not_tried_again(tmp_path: Path) -> None:
    hanging = plan_backward(BACKWARD, BackwardRequest(block_m=64, block_n=128, stages_q=1, stages_do=3))
    bad = {"hangs": lambda made: made == hanging}
    state = tmp_path / "state.jsonl"
    with pytest.raises(LostGpuError, match=r"64x128 q1 do3 ds2 dq1 stores\): it did not come back"):
        search(machine(**bad), 512, state=TuneState(state)).run()
    (only,) = search(machine(**bad), 512, state=TuneState(state)).run()
    assert (only.plan.stages_q, only.plan.stages_do) == (1, 3), "as good, and comes back"
    assert only.plan != hanging


def test_an_interrupted_run_goes_on_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "state.jsonl"
    whole = machine()
    expected = search(whole, 512, 4096).run()
    interrupted = search(machine(interrupted_after=20), 512, 4096, state=TuneState(path))
    with pytest.raises(KeyboardInterrupt):
        interrupted.run()
    assert interrupted.best()[0].shape == shape(512, "bwd")
    second = machine()
    assert search(second, 512, 4096, state=TuneState(path)).run() == expected
    assert 0 < len(whole.timed) - len(second.timed) <= 20
    third = machine()
    assert search(third, 512, 4096, state=TuneState(path)).run() == expected
    assert (third.timed, third.verified) == ([], [])
    exact = KernelSpec.backward(head_dim=128, mask="causal", deterministic=True)
    fresh, steady = machine(), machine()
    search(fresh, 512, 4096, spec=exact).run()
    search(steady, 512, 4096, spec=exact, state=TuneState(path)).run()
    assert steady.timed == fresh.timed != [], "the deterministic one is another kernel: nothing is known of it"


def test_the_yaml_builds_the_winner() -> None:
    spec = KernelSpec.backward(head_dim=128, mask="causal", deterministic=True)
    (only,) = ranges = search(machine(), 8192, 16384, spec=spec).run()
    text = to_config(ranges, "a made-up GPU", "13.0.88")
    assert [plan_entry(entry) for entry in load_config(text)] == [only.plan]
    assert text.splitlines()[3:] == [
        "kernel: attention_bwd",
        "schedule: fa3",
        "arch: sm90a",
        "dtype: bf16",
        "head_dim: 128",
        "mask: causal",
        "features: [deterministic]",
        "tile: {m: 80, n: 128}",
        "stages_q: 3",  # and so stages_do: 1
        "split_roles: false",
    ]
    comment = "\n".join(text.splitlines()[:3])
    assert comment.startswith("# Tuned on a made-up GPU with NVRTC 13.0.88.")
    assert "# bwd d128 causal B1 H16 S8192: " in comment
    assert "# bwd d128 causal B1 H16 S16384: " in comment
    assert comment.count("1.111 x incumbent, ") == comment.count(" x cuDNN") == 2


def test_the_page_says_how_many_plans_there_are() -> None:
    def count(head_dim: int, **changes: object) -> int:
        tiles = first_round(KernelSpec.backward(head_dim=head_dim, **changes), [], 10**6)  # type: ignore[arg-type]
        return len({made for base in tiles for made in (base, *family_of(base))})

    page = (ROOT / "docs" / "tuning.md").read_text("utf-8")
    counts = {head_dim: count(head_dim) for head_dim in (40, 64, 80, 128, 256)}
    assert f"A backward has fewer plans, {counts[256]} for head dim 256 to {counts[40]} for 40." in page
    exact = {head_dim: count(head_dim, deterministic=True) for head_dim in counts}
    assert f"A deterministic one has {exact[256]} to {exact[40]}" in page
    assert (exact[256], exact[40]) == (min(exact.values()), max(exact.values()))
    assert all(counts[head_dim] == 2 * exact[head_dim] for head_dim in counts), "half as many"
    assert count(128, mask="causal") == counts[128]
    tiles = first_round(KernelSpec.backward(head_dim=128), [], 10**6)
    (high,) = (base for base in tiles if isinstance(base, BackwardPlan) and base.block_m == 80)
    assert f"{counts[128]} for head dim 128, of which {1 + len(family_of(high))} have 80 query rows" in page
    assert counts[256] == min(counts.values())
    assert counts[40] == max(counts.values())


def test_labels_in_messages_name_the_stages_and_what_is_chosen() -> None:
    assert label(plan_backward(BACKWARD)) == "80x128 q2 do2 ds2 dq1 stores"
    asks = plan_backward(BACKWARD, BackwardRequest(mask_loops=False))
    assert label(asks) == "64x128 q2 do2 ds2 dq1 stores asks"
    zeroed = plan_backward(BACKWARD, BackwardRequest(stores_first=False, stages_q=3))
    assert label(zeroed) == "80x128 q3 do1 ds2 dq1"
    keys = plan_backward(KernelSpec.backward(head_dim=64), BackwardRequest(keys_in_registers=True))
    assert label(keys) == "64x128 q2 do2 ds2 dq1 kreg stores"
    ordered = plan_backward(BACKWARD, BackwardRequest(keys_in_order=True))
    assert label(ordered) == "80x128 q2 do2 ds2 dq1 stores order"
    roles = plan_backward(KernelSpec.backward(head_dim=256))
    assert label(roles) == "64x64 q2 do1 ds1 dq2 roles"
