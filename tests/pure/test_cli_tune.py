"""``flashgen tune`` of backwards: what it is asked for, and what it gives."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from flashgen.cli.app import app
from flashgen.cli.shared import USAGE
from flashgen.cli.tune_problems import problems_of
from tests.pure.fake_tuner import TOOLS, Fake, backward_milliseconds


def run(fake: Fake, monkeypatch: pytest.MonkeyPatch, *words: str) -> Result:
    import flashgen.toolchain
    import flashgen.tune_gpu

    monkeypatch.setattr(flashgen.tune_gpu, "Gpu", lambda spec, jobs: fake)
    monkeypatch.setattr(flashgen.toolchain, "find_toolchain", lambda: TOOLS)
    return CliRunner().invoke(app, ["tune", *words, "--seqlen", "512,4096"])


def test_the_command_tunes_a_backward_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = ["--backward", "--deterministic", "--head-dim", "128", "--mask", "causal"]
    done = run(Fake(backward_milliseconds), monkeypatch, *own, "--state", str(tmp_path / "state"), "--json")
    assert done.exit_code == 0, done.output
    (document,) = json.loads(done.stdout)
    assert document["name"] == "attention_bwd_fa3_sm90a_bf16_d128_causal_deterministic"
    assert [[each["shape"] for each in one["shapes"]] for one in document["ranges"]] == [
        ["bwd d128 causal B32 H16 S512"],
        ["bwd d128 causal B4 H16 S4096"],
    ]
    assert [one["plan"]["stages_q"] for one in document["ranges"]] == [1, 3]
    assert "bwd d128 causal B4 H16 S4096: " in done.stderr


def test_the_command_tunes_the_backwards_of_a_config_and_tries_their_plans(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "x.yaml"
    config.write_text(
        "kernel: attention_bwd\narch: sm90a\ndtype: bf16\nhead_dim: 128\nmask: [full, causal]\n"
        "tile: {m: 64, n: 128}\nstages_q: 3\nstages_do: 1\nregisters: {producer: 24, consumer: 240}\nstages_ds: 3\n"
    )
    fake = Fake(backward_milliseconds)
    done = run(fake, monkeypatch, str(config), "--state", str(tmp_path / "state"))
    assert done.exit_code == 0, done.output
    assert done.stdout.count("kernel: attention_bwd") == 4, "of two problems and two ranges of keys"
    assert [done.stdout.count(f"keys: {{{ends}}}") for ends in ("from: 0, below: 2304", "from: 2304")] == [2, 2]
    assert any(made.stages_ds == 3 for made, _, _ in fake.timed), "the config's own plan"


def test_directions_do_not_mix() -> None:
    def names(*configs: str, backward: bool) -> set[str]:
        problems = problems_of(
            list(configs), "*_bf16_*causal*", {}, None, dict.fromkeys(sizes), backward=backward, deterministic=False
        )
        assert {shape.direction for each in problems for shape in each.shapes} == {"bwd" if backward else "fwd"}
        return {each.spec.name for each in problems}

    sizes = ("batch", "heads", "heads_kv")
    stem = "fa3_sm90a_bf16_d128_causal"
    both = ("attention_*_d128_*",)
    assert names(*both, backward=False) == {f"attention_fwd_{stem}"}
    assert names(*both, backward=True) == {f"attention_bwd_{stem}", f"attention_bwd_{stem}_deterministic"}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--deterministic", "--head-dim", "64"], "--deterministic is of a backward of your own"),
        (["attention_bwd_*_d64_*", "--deterministic"], "--deterministic is of a backward of your own"),
        (["attention_fwd_*_d64_*", "--backward"], "expected kernels of attention_bwd"),
        (["--backward"], "nothing to tune"),
    ],
)
def test_what_cannot_be_meant_is_refused(words: list[str], says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    done = run(Fake(backward_milliseconds), monkeypatch, *words)
    assert done.exit_code == USAGE
    assert says in " ".join(done.output.replace("│", " ").split())


def test_a_plan_that_does_not_fit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "x.yaml"
    config.write_text("kernel: attention_bwd\narch: sm90a\ndtype: bf16\nhead_dim: 128\ntile: {m: 128, n: 128}\n")
    done = run(Fake(backward_milliseconds), monkeypatch, str(config), "--state", str(tmp_path / "state"))
    assert done.exit_code == USAGE
    assert "bytes of shared memory" in " ".join(done.output.split())
