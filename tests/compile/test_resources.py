"""The compiler's log, read: registers, spills, stack, and the WGMMA notes that come with success."""

from __future__ import annotations

from pathlib import Path

import pytest

from flashgen.compiler import _failed, compile_source
from flashgen.errors import CompileError
from flashgen.resources import Resources, parse_log
from flashgen.toolchain import Toolchain

CLEAN = """ptxas info    : 9019 bytes gmem
ptxas info    : Compiling entry function 'forward' for 'sm_90a'
ptxas info    : Function properties for forward
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 168 registers, used 16 barriers, 1024 bytes smem
ptxas info    : Compile time = 1216.067 ms
"""
SPILLED = CLEAN.replace(
    "0 bytes stack frame, 0 bytes spill stores, 0 b", "48 bytes stack frame, 36 bytes spill stores, 40 b"
)
SERIAL = "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized due to x\n"


def test_clean() -> None:
    found = parse_log(CLEAN)
    assert found == Resources(168, 0, 0, 0, 1024)
    assert (found.shippable, found.complaints) == (True, ())


def test_spills_and_stack() -> None:
    found = parse_log(SPILLED)
    assert (found.spill_stores, found.spill_loads, found.stack_bytes, found.shippable) == (36, 40, 48, False)
    assert [word in text for word, text in zip(("36 bytes", "48 bytes"), found.complaints, strict=True)] == [True, True]


def test_wgmma_notes() -> None:
    found = parse_log(SERIAL + SERIAL + SERIAL.replace("C7510", "C7514") + CLEAN)
    assert [line[:5] for line in found.wgmma_warnings] == ["C7510", "C7514"]
    assert "serialized due to x" in found.complaints[0]
    assert not found.shippable


def test_functions_that_are_not_inlined_count() -> None:
    other = "Function properties for _Z5otherv\n    16 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
    assert parse_log(CLEAN + other).stack_bytes == 16


@pytest.mark.parametrize("log", ["", "ptxas info    : Used 168 registers\n", "warning: something\n"])
def test_silence_is_not_soundness(log: str) -> None:
    with pytest.raises(ValueError, match="no ptxas report"):
        parse_log(log)


def test_json_round_trip() -> None:
    found = parse_log(SERIAL + SPILLED)
    assert Resources.from_dict(found.to_dict()) == found
    with pytest.raises(TypeError):
        Resources.from_dict(found.to_dict() | {"registers": "168"})


def test_real_spills_are_seen(toolchain: Toolchain) -> None:
    """A kernel that must use local memory says so in its report."""
    source = """extern "C" __global__ void __launch_bounds__(1024, 2) heavy(float* data, int n) {
  float held[256];
  for (int i = 0; i < 256; ++i) held[i] = data[i * n];
  for (int i = 0; i < 256; ++i) data[i] = held[(i * n) & 255];
}
"""
    found = compile_source(source, "heavy", "sm90a", toolchain).resources
    assert (found.stack_bytes >= 1024, found.shippable) == (True, False)


def test_what_ptxas_refuses_is_shown(cache_dir: Path) -> None:
    """Its reason stands in a line that says fatal, above the one that says error."""
    reason = "ptxas application ptx input, line 9; fatal   : (C7406) setmaxnreg.dec has register count (200) too large"
    log = f"bad.cu(1): warning #177-D: unused\n{reason}\nptxas fatal   : Ptx assembly aborted due to errors"
    said = str(_failed("// source", "bad", log))
    assert reason in said
    assert "unused" not in said


def test_error_names_the_line_and_keeps_the_source(toolchain: Toolchain, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("FLASHGEN_DUMP", str(tmp_path / "dump"))
    source = 'extern "C" __global__ void bad() {\n  undeclared = 1;\n}\n'
    with pytest.raises(CompileError, match="undeclared") as error:
        compile_source(source, "bad", "sm90a", toolchain)
    path = error.value.source_path
    assert path is not None
    assert path.parent == tmp_path / "dump"
    assert path.read_text() == source
    assert "undeclared" in path.with_suffix(".log").read_text()
    assert "bad.cu(2)" in error.value.log
    assert str(path) in str(error.value)
