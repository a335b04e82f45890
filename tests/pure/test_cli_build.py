"""``flashgen build`` without a compiler: what it prints and exits with when kernels fail or it is interrupted."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from flashgen import build as build_module
from flashgen.cli.app import app
from flashgen.errors import ArgumentError, CompileError
from flashgen.generator import load_config

ONE = "kernel: attention_fwd\narch: sm90a\ndtype: bf16\nhead_dim: 72\nmask: causal\n"
NAME = "attention_fwd_fa3_sm90a_bf16_d72_causal"
Run = Callable[..., Result]


@pytest.fixture
def run() -> Run:
    runner = CliRunner()
    return lambda *words: runner.invoke(app, [str(word) for word in words])


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "x.yaml"
    path.write_text(ONE)
    return path


def refused(result: Result, code: int, *words: str) -> None:
    """The words on stderr, nothing on stdout, no traceback."""
    assert (result.exit_code, result.stdout) == (code, ""), result.output
    assert [word for word in (*words, "") if word not in result.stderr] == []
    assert "Traceback" not in result.stderr


def failing(entries: Any, out_dir: Any, jobs: Any = None, on_progress: Any = None) -> build_module.BuildResult:
    """A build whose every kernel the compiler refuses."""
    error = CompileError("k did not compile. Source: k.cu\nline 1: error", "log")
    for done, entry in enumerate(entries, 1):
        on_progress(build_module.Outcome(entry, error=error), done, len(entries))
    return build_module.BuildResult(failed=[(entry, error) for entry in entries])


def test_build_ends_with_1_when_a_kernel_failed(run: Run, config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_module, "build_all", failing)
    refused(run("build", config), 1, f"[1/1] {NAME}: failed", "line 1: error", "1 of 1 kernels failed")
    result = run("build", config, "--json")
    assert result.exit_code == 1
    assert [row["name"] for row in json.loads(result.stdout)["failed"]] == [NAME]


def test_an_interrupted_build_says_what_is_kept(run: Run, config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(entries: Any, out_dir: Any, jobs: Any = None, on_progress: Any = None) -> None:
        on_progress(build_module.Outcome(entries[0], error=CompileError("x")), 1, len(entries))
        raise KeyboardInterrupt

    monkeypatch.setattr(build_module, "build_all", interrupted)
    refused(run("build", config, "-o", "kept"), 130, "1 of 1 kernels were done", "kept in kept")


def test_a_fault_of_our_own_shows_no_traceback_unless_asked(
    run: Run, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(build_module, "build_all", broken)
    refused(run("build", config), 1, "ZeroDivisionError: oops", "--debug")
    assert isinstance(run("--debug", "build", config).exception, ZeroDivisionError)


@pytest.mark.parametrize("jobs", [0, -1])
def test_a_build_needs_a_job_at_least(jobs: int, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=f"jobs: got {jobs}; expected a number from 1, or None"):
        build_module.build_all(load_config(ONE), tmp_path / "build", jobs)
    assert list(tmp_path.iterdir()) == []
