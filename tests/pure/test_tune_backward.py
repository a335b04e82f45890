"""The search for a backward on a made-up machine: all stages of the best tiles, one plan for all lengths."""

from __future__ import annotations

from pathlib import Path

import pytest

from flashgen.generator import BackwardPlan, BackwardRequest, KernelSpec, load_config, plan_backward, plan_entry
from flashgen.generator.paths import ROOT
from flashgen.generator.search import label
from flashgen.tune import Search
from flashgen.tune_report import to_config
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
    found = search(fake, 8192)
    (only,) = found.run()
    assert (only.plan.stages_q, only.plan.stages_do, only.plan.split_roles) == (3, 1, False)
    assert only.plan.stores_first, "as today: it does not matter on this machine"
    first = {made.block_n for made, _, _ in fake.timed[:1]}
    assert first == {64}, "of the other tile one plan, before any other stages of today's"
    everything = {made for base in first_round(BACKWARD, [], 10**6) for made in (base, *family_of(base))}
    assert set(found.tried) == everything
    assert len(everything) <= SMALL.budget
    assert only.found[0].verified
    assert {made for made, _, repetitions in fake.timed if repetitions == SMALL.finals} <= set(fake.verified)


def test_one_plan_serves_all_lengths_and_it_is_the_best_on_average() -> None:
    found = search(machine(), 512, 4096)
    (only,) = found.run()
    assert (only.first, only.below) == (0, None)
    assert (only.plan.stages_q, only.plan.stages_do) == (3, 3), "best on neither length"
    assert [each.shape.seqlen_k for each in only.found] == [512, 4096]
    assert [each.measured.over_incumbent for each in only.found] == pytest.approx([1 / 0.92] * 2)
    fastest = [max(known.values(), key=lambda one: one.over_incumbent) for known in found.coarse.values()]
    assert [one.over_incumbent for one in fastest] == pytest.approx([1 / 0.90] * 2)


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

    found = search(Fake(nearly), 512, 4096)
    (only,) = found.run()
    assert only.plan == plan_backward(BACKWARD)
    (better,) = search(Fake(lambda made, at: nearly(made, at) ** 2), 512, 4096).run()
    assert better.plan.stages_q == 3


@pytest.mark.parametrize("trick", ["wrong", "spills", "broken", "fails"])
def test_what_is_wrong_never_wins(trick: str) -> None:
    fake = machine(**{trick: lambda made: (made.stages_q, made.stages_do) == (3, 3)})
    found = search(fake, 512, 4096)
    (only,) = found.run()
    assert (only.plan.stages_q, only.plan.stages_do) != (3, 3)
    assert only.found[0].verified
    assert any((made.stages_q, made.stages_do) == (3, 3) for made in found.trials.refused)


def test_a_kernel_that_hangs_is_not_tried_again(tmp_path: Path) -> None:
    hanging = (3, 3, False, True)
    bad = {"hangs": lambda made: (made.stages_q, made.stages_do, made.split_roles, made.stores_first) == hanging}
    state = tmp_path / "state.jsonl"
    with pytest.raises(LostGpuError, match=r"64x128 q3 do3 ds2 dq1 stores\): it did not come back"):
        search(machine(**bad), 512, 4096, state=TuneState(state)).run()
    (only,) = search(machine(**bad), 512, 4096, state=TuneState(state)).run()
    assert (only.plan.stages_q, only.plan.stages_do, only.plan.stores_first) == (3, 3, False), "as good, and comes back"


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
    (only,) = ranges = search(machine(), 512, 4096, spec=spec).run()
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
        "tile: {m: 64, n: 128}",
        "stages_q: 3",
        "stages_do: 3",
        "split_roles: false",
    ]
    comment = "\n".join(text.splitlines()[:3])
    assert comment.startswith("# Tuned on a made-up GPU with NVRTC 13.0.88.")
    assert "# bwd d128 causal B1 H16 S512: " in comment
    assert "# bwd d128 causal B1 H16 S4096: " in comment
    assert comment.count("1.087 x incumbent, ") == comment.count(" x cuDNN") == 2


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
    full, causal = counts[128], count(128, mask="causal")
    assert f"{full} for head dim 128 with `mask: full`, of which {full - causal} have 80 query rows" in page
    assert counts[256] == min(counts.values())
    assert counts[40] == max(counts.values())


def test_labels_in_messages_name_the_stages_and_what_is_chosen() -> None:
    assert label(plan_backward(BACKWARD)) == "64x128 q2 do2 ds2 dq1 stores"
    zeroed = plan_backward(BACKWARD, BackwardRequest(stores_first=False, stages_q=3))
    assert label(zeroed) == "64x128 q3 do2 ds2 dq1"
    keys = plan_backward(KernelSpec.backward(head_dim=64), BackwardRequest(keys_in_registers=True))
    assert label(keys) == "64x128 q2 do2 ds2 dq1 kreg stores"
    roles = plan_backward(KernelSpec.backward(head_dim=256))
    assert label(roles) == "64x64 q2 do1 ds1 dq2 roles"
