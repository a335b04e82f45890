"""The search on a made-up machine: it finds the best, believes nothing unverified, forgets nothing, survives Ctrl-C."""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from flashgen.bench_grid import Shape
from flashgen.cli.app import app
from flashgen.cli.shared import INTERRUPTED
from flashgen.generator import KernelPlan, load_config, plan_entry
from flashgen.generator.paths import ROOT
from flashgen.generator.search import label
from flashgen.tune import Search
from flashgen.tune_report import ranged_plan, to_config
from flashgen.tune_space import Options
from flashgen.tune_state import TuneState
from flashgen.tune_trials import LostGpuError
from tests.pure.fake_tuner import SMALL, SPEC, TOOLS, Fake, milliseconds, shape


def search(machine: Fake, *seqlens: int, state: TuneState | None = None, options: Options = SMALL) -> Search:
    return Search(SPEC, [shape(n) for n in seqlens], machine, state or TuneState(None), options)


def test_the_best_plan_is_found_by_tiles_then_knobs_then_both_together() -> None:
    machine = Fake()
    found = search(machine, 8192)
    (only,) = found.run()
    assert milliseconds(only.plan, shape(8192)) == pytest.approx(8.192), label(only.plan)
    assert (only.first, only.below) == (0, None)
    assert only.found[0].verified
    assert len(found.tried) <= SMALL.budget
    assert {made for made, _, repetitions in machine.timed if repetitions == 4} <= set(machine.verified)


def test_each_length_gets_its_own_plan_and_neighbours_share_one() -> None:
    ranges = search(Fake(), 512, 1024, 4096, 16384).run()
    assert [(each.first, each.below) for each in ranges] == [(0, 2560), (2560, None)]
    assert [[found.shape.seqlen_k for found in each.found] for each in ranges] == [[512, 1024], [4096, 16384]]
    assert [each.plan.block_n for each in ranges] == [96, 160]
    assert all(found.measured.over_incumbent >= 1 for each in ranges for found in each.found)


def test_plans_within_one_percent_are_merged() -> None:
    def nearly(made: KernelPlan, at: Shape) -> float:
        best = 160 if at.seqlen_k > 3000 else 144
        return 1 if made.block_n == best else 1.008 if made.block_n in (144, 160) else 1.2

    (only,) = search(Fake(nearly), 1024, 8192).run()
    assert only.plan.block_n in (144, 160)
    assert len(search(Fake(lambda made, at: nearly(made, at) ** 3), 1024, 8192).run()) == 2


def test_the_incumbent_stays_unless_it_is_beaten_clearly() -> None:
    machine = Fake(lambda made, at: 0.997 if made.block_n == 112 else 1.0)
    found = search(machine, 4096)
    (only,) = found.run()
    assert only.plan == found.incumbents[shape(4096)]


@pytest.mark.parametrize("trick", ["wrong", "spills", "broken", "fails"])
def test_what_is_wrong_never_wins(trick: str) -> None:
    bad = {trick: lambda made: made.block_n == 96}
    found = search(Fake(**bad), 1024)
    (only,) = found.run()
    assert only.plan.block_n in (80, 112)
    assert any(made.block_n == 96 for made in found.trials.refused)


def test_a_kernel_that_hangs_ends_the_run_and_is_not_tried_again(tmp_path: Path) -> None:
    state = tmp_path / "state.jsonl"
    bad = {"hangs": lambda made: made.block_n == 112 and made.rescale == "early" and not made.early_start}
    with pytest.raises(LostGpuError, match="goes on without it"):
        search(Fake(**bad), 1024, state=TuneState(state)).run()
    only = None
    for _ in range(20):  # each run finds one more
        with contextlib.suppress(LostGpuError):
            (only,) = search(Fake(**bad), 1024, state=TuneState(state)).run()
            break
    assert only is not None
    assert only.plan.block_n == 96


def test_an_interrupted_run_goes_on_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "state.jsonl"
    whole = Fake()
    expected = search(whole, 1024, 8192).run()
    first = Fake(interrupted_after=40)
    interrupted = search(first, 1024, 8192, state=TuneState(path))
    with pytest.raises(KeyboardInterrupt):
        interrupted.run()
    assert interrupted.best()[0].shape == shape(1024)
    assert not interrupted.best()[0].verified
    with path.open("ab") as file:
        file.write(b'{"what": "time", "key": {"pl')  # as a crash leaves it
    second = Fake()
    assert search(second, 1024, 8192, state=TuneState(path)).run() == expected
    assert 0 < len(whole.timed) - len(second.timed) <= 40
    third = Fake()
    assert search(third, 1024, 8192, state=TuneState(path)).run() == expected
    assert (third.timed, third.verified) == ([], [])
    other = Fake()
    other.name = "another GPU"
    search(other, 1024, 8192, state=TuneState(path)).run()
    assert len(other.timed) == len(whole.timed)


def test_the_yaml_builds_the_winners() -> None:
    ranges = search(Fake(), 512, 16384).run()
    text = to_config(ranges, "a made-up GPU", "13.0.88")
    assert [plan_entry(entry) for entry in load_config(text)] == [ranged_plan(each) for each in ranges]
    assert "keys: {from: 8448}\ntile: {m: 128, n: 160}" in text
    assert "# fwd d128 causal B1 H16 S512: " in text
    assert [words for words in ("x incumbent", "x cuDNN", "NVRTC 13.0.88", "a made-up GPU") if words not in text] == []
    (entry,) = load_config(to_config(search(Fake(), 512).run(), "g", "1"))
    assert entry.spec == SPEC


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import flashgen.toolchain
    import flashgen.tune_gpu

    machine = Fake()
    monkeypatch.setattr(flashgen.tune_gpu, "Gpu", lambda spec, jobs: machine)
    monkeypatch.setattr(flashgen.toolchain, "find_toolchain", lambda: TOOLS)
    words = ["tune", "--head-dim", "128", "--mask", "causal", "--seqlen", "1024,8192", "--batch", "1"]
    words += ["--budget", "60", "--state", str(tmp_path / "state"), "--output", str(tmp_path / "o.yaml")]
    machine.tricks["interrupted_after"] = 80
    stopped = CliRunner().invoke(app, words)
    assert (stopped.exit_code, stopped.stdout) == (INTERRUPTED, "")
    assert "best so far: fwd d128 causal B1 H16 S1024" in stopped.stderr
    assert str(tmp_path / "state") in stopped.stderr.replace("\n", "")
    assert not (tmp_path / "o.yaml").exists()
    machine.tricks.clear()
    done = CliRunner().invoke(app, [*words, "--json"])
    assert done.exit_code == 0, done.output
    (document,) = json.loads(done.stdout)
    assert [each["from"] for each in document["ranges"]] == [0, 4608]
    assert (tmp_path / "o.yaml").read_text() == "---\n".join(each["config"] for each in document["ranges"])


def test_the_page_names_every_option_and_no_other() -> None:
    page = (ROOT / "docs" / "tuning.md").read_text("utf-8")
    command = get_command(app).commands["tune"]  # type: ignore[attr-defined]
    options = {name for parameter in command.params for name in parameter.opts if name.startswith("--")}
    table = page.split("## How it searches")[0]
    assert set(re.findall(r"`(--[a-z-]+)`", table)) == options
    blocks = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    ops = [plan_entry(entry).spec.op for text in blocks for entry in load_config(text)]
    assert ops == ["attention_bwd", "attention_fwd", "attention_fwd"]
