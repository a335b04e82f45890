"""Fixtures of tests without CUDA."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import flashgen
from flashgen import loading
from tests.pure.command_line import Run, run_command


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The command line, in a folder and with a cache of its own."""
    monkeypatch.setenv("FLASHGEN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return run_command


@pytest.fixture
def no_kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As in a process that has just started: no kernel made, no folder loaded."""
    for name in ("_kernels", "_preferred", "_by_spec"):
        monkeypatch.setattr(loading, name, {})
    yield
    flashgen.unload()
