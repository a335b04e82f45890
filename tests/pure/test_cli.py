"""The command line without a compiler or a GPU: what it prints, refuses, and exits with."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import flashgen
from flashgen.cli import shared
from flashgen.cli.app import app
from flashgen.generator import load_config

ONE = """\
kernel: attention_fwd
arch: sm90a
dtype: bf16
head_dim: 72
mask: causal
"""
NAME = "attention_fwd_fa3_sm90a_bf16_d72_causal"
Run = Callable[..., Result]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLASHGEN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def run() -> Run:
    runner = CliRunner()
    return lambda *words, **options: runner.invoke(app, [str(word) for word in words], **options)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "x.yaml"
    path.write_text(ONE)
    return path


def refused(result: Result, code: int, *words: str) -> None:
    """One clear message on stderr, nothing on stdout, no traceback."""
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    for word in words:
        assert word in result.stderr


def test_help_names_every_command_with_an_example(run: Run) -> None:
    shown = run("--help")
    assert shown.exit_code == 0
    for command in app.registered_commands:
        name = command.name or command.callback.__name__  # type: ignore[union-attr]
        assert f" {name} " in shown.stdout
        page = run(name, "--help")
        assert page.exit_code == 0
        assert f"Example: flashgen {name}" in page.stdout


def test_version_and_no_command(run: Run) -> None:
    assert run("--version").stdout == f"flashgen {flashgen.__version__}\n"
    nothing = run()
    assert nothing.exit_code == 2
    assert "Commands" in nothing.output


def test_new_writes_what_build_reads(run: Run, tmp_path: Path) -> None:
    printed = run("new", "--head-dim", 72, "--arch", "sm90a")
    assert printed.exit_code == 0
    assert len(load_config(printed.stdout)) == 4
    path = tmp_path / "mine.yaml"
    written = run("new", "--head-dim", 192, "--head-dim-v", 128, "--dtype", "bf16", "--mask", "full", "-o", path)
    assert (written.exit_code, written.stdout) == (0, "")
    (entry,) = load_config(path)
    assert entry.spec.name == "attention_fwd_fa3_sm90a_bf16_d192x128_full"
    refused(run("new", "--head-dim", 64, "-o", path), 2, "exists already")
    assert load_config(path)[0].spec.head_dim_v == 128


def test_new_refuses_what_cannot_be(run: Run) -> None:
    refused(run("new", "--head-dim", 63), 2, "63", "multiples of 8")
    refused(run("new", "--head-dim", 64, "--arch", "sm91"), 2, "sm91", "sm90a")
    refused(run("new", "--head-dim", 64, "--arch", "sm80"), 2, "not available yet")
    refused(run("new", "--head-dim", 64, "--dtype", "bf61"), 2, "bf61", "bf16")
    refused(run("new", "--head-dim", "wide"), 2, "integer")
    refused(run("new"), 2, "--head-dim")


def test_render_prints_the_source_of_a_file_a_name_and_standard_input(run: Run, config: Path) -> None:
    from_file = run("render", config)
    assert from_file.exit_code == 0
    assert f" {NAME}(" in from_file.stdout
    assert "x.yaml:1" in from_file.stdout
    shipped = run("render", NAME)
    assert shipped.stdout.startswith(f"// {NAME}\n")
    assert run("render", "configs/sm90/attention_fwd_d72.yaml", "--only", "*_bf16_*_causal").stdout == shipped.stdout
    assert f" {NAME}(" in run("render", "-", input=ONE).stdout


def test_render_writes_files(run: Run, config: Path, tmp_path: Path) -> None:
    result = run("render", config, "-o", tmp_path / "sources")
    assert result.stdout == f"{tmp_path / 'sources' / NAME}.cu\n"
    assert (tmp_path / "sources" / f"{NAME}.cu").read_text() == run("render", config).stdout


def test_kernels_are_picked_by_arch_and_glob(run: Run, config: Path) -> None:
    names = [row["name"] for row in json.loads(run("explain", "--only", "*_fwd_*_d72_*", "--json").stdout)]
    assert sorted(names) == [
        f"attention_fwd_fa3_sm90a_{d}_d72_{m}" for d in ("bf16", "fp16") for m in ("causal", "full")
    ]
    ranges = [entry.spec.name for entry in shared.entries_of(["attention_fwd_fa3_sm90a_bf16_d128_causal"])]
    assert {name.partition("_causal")[0] for name in ranges} == {"attention_fwd_fa3_sm90a_bf16_d128"}
    refused(run("render", "--arch", "sm80"), 2, "--arch sm80", "sm90a")
    refused(run("render", "--only", "*_d65_*"), 2, "'*_d65_*'")
    refused(run("render", NAME.replace("causal", "casual")), 2, NAME)
    (twin := config.with_name("y.yaml")).write_text(ONE)
    refused(run("render", config, twin), 2, "given twice", "y.yaml", "x.yaml")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("head_dim: 72", "head_dim: 63"), ("bad.yaml:4", "63")),
        (("mask: causal", "maks: causal"), ("bad.yaml:5", "maks", "mask")),
        (("dtype: bf16", "dtype: []"), ("bad.yaml:3", "empty")),
        (("arch: sm90a", "arch: sm80"), ("bad.yaml", "not available yet")),
        (("mask: causal", "mask: causal\ntile: {m: 192, n: 250}"), ("bad.yaml", "250")),
    ],
)
@pytest.mark.parametrize("command", ["build", "render", "explain"])
def test_a_bad_config_ends_with_2(run: Run, tmp_path: Path, command: str, change: Any, words: Any) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text(ONE.replace(*change))
    refused(run(command, bad), 2, *words)


def test_a_missing_file_ends_with_2(run: Run, tmp_path: Path) -> None:
    refused(run("build", tmp_path / "none.yaml"), 2, "none.yaml", "no such file")


def test_schema_is_json(run: Run) -> None:
    assert "head_dim" in json.loads(run("schema").stdout)["properties"]


def test_cache_is_shown_located_and_cleared(run: Run, tmp_path: Path) -> None:
    assert run("cache", "path").stdout == f"{tmp_path / 'cache'}\n"
    assert json.loads(run("cache", "show", "--json").stdout) == {"folder": str(tmp_path / "cache"), "kernels": []}
    assert "0 kernels" in run("cache", "show").stdout
    assert "removed 0 kernels" in run("cache", "clear").stdout


def test_doctor_reports_and_exits_by_whether_it_can_compile(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    result = run("doctor", "--json")
    report = json.loads(result.stdout)
    assert result.exit_code == (0 if report["can_compile"] else 1)
    assert {"python", "NVRTC", "torch", "driver", "cache"} <= {finding["name"] for finding in report["findings"]}
    monkeypatch.setenv("FLASHGEN_CUTLASS_INCLUDE", "/nowhere")
    broken = run("doctor")
    assert broken.exit_code == 1
    assert "/nowhere" in broken.stdout


def test_bench_and_verify_check_their_arguments_first(run: Run, config: Path) -> None:
    refused(run("bench", "--head-dim", 63), 2, "63")
    refused(run("bench", "--seqlen", 128), 2, "seqlen", "--head-dim")
    refused(run("bench", "--shape", "no such shape"), 2, "no such shape")
    refused(run("bench", "--head-dim", 64, "--heads", 6, "--heads-kv", 4), 2, "multiple")
    refused(run("verify", config, "--built", "x"), 2, "--built")
