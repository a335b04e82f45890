"""ForwardParams is laid out by C++ as Python thinks: every offset, the size and the alignment."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from flashgen.compiler import compile_source
from flashgen.errors import CompileError
from flashgen.params import forward_layout, forward_params
from flashgen.toolchain import Toolchain

# NVRTC has no offsetof that is a constant; this is what its front end makes of one.
OFFSET = "__INTADDR__(&static_cast<ForwardParams*>(nullptr)->{})"
SOURCE = """#include <flashgen/attention/params.h>
using flashgen::ForwardParams;
{asserts}
extern "C" __global__ void sizes(ForwardParams const __grid_constant__ params) {{}}
"""


def compile_asserts(asserts: list[str], toolchain: Toolchain) -> None:
    compile_source(SOURCE.format(asserts="\n".join(asserts)), "sizes", "sm90a", toolchain)


def test_offsets_and_sizes(toolchain: Toolchain) -> None:
    layout = forward_layout()
    asserts = [f'static_assert(sizeof(ForwardParams) == {layout.size}, "size");']
    asserts += [f'static_assert(alignof(ForwardParams) == {layout.alignment}, "alignment");']
    for field in layout.fields:
        asserts += [f'static_assert({OFFSET.format(field.name)} == {field.offset}, "offset of {field.name}");']
        asserts += [f'static_assert(sizeof(ForwardParams::{field.name}) == {field.size}, "size of {field.name}");']
    compile_asserts(asserts, toolchain)
    assert ctypes.sizeof(forward_params()) == layout.size
    assert len(asserts) == 2 + 2 * len(layout.fields)


def test_a_wrong_offset_would_be_seen(toolchain: Toolchain, cache_dir: Path) -> None:
    wrong = forward_layout().fields[-1]
    with pytest.raises(CompileError, match="static assertion"):
        compile_asserts([f'static_assert({OFFSET.format(wrong.name)} == {wrong.offset + 4}, "x");'], toolchain)
