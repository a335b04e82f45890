"""The params structs are laid out by C++ as Python thinks: every offset, the size and the alignment."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from flashgen.compiler import compile_source
from flashgen.errors import CompileError
from flashgen.params import backward_layout, backward_params, forward_layout, forward_params
from flashgen.toolchain import Toolchain

STRUCTS = {
    "ForwardParams": ("params.h", forward_layout, forward_params),
    "BackwardParams": ("backward_params.h", backward_layout, backward_params),
}
SOURCE = """#include <flashgen/attention/{header}>
using flashgen::{name};
{asserts}
extern "C" __global__ void sizes({name} const __grid_constant__ params) {{}}
"""


def offset(struct: str, field: str) -> str:
    """NVRTC has no offsetof that is a constant; this is what its front end makes of one."""
    return f"__INTADDR__(&static_cast<{struct}*>(nullptr)->{field})"


def compile_asserts(struct: str, asserts: list[str], toolchain: Toolchain) -> None:
    source = SOURCE.format(header=STRUCTS[struct][0], name=struct, asserts="\n".join(asserts))
    compile_source(source, "sizes", "sm90a", toolchain)


@pytest.mark.parametrize("struct", STRUCTS)
def test_offsets_and_sizes(struct: str, toolchain: Toolchain) -> None:
    layout, mirror = STRUCTS[struct][1](), STRUCTS[struct][2]()
    asserts = [f'static_assert(sizeof({struct}) == {layout.size}, "size");']
    asserts += [f'static_assert(alignof({struct}) == {layout.alignment}, "alignment");']
    for field in layout.fields:
        asserts += [f'static_assert({offset(struct, field.name)} == {field.offset}, "offset of {field.name}");']
        asserts += [f'static_assert(sizeof({struct}::{field.name}) == {field.size}, "size of {field.name}");']
    compile_asserts(struct, asserts, toolchain)
    assert ctypes.sizeof(mirror) == layout.size
    assert len(asserts) == 2 + 2 * len(layout.fields)


@pytest.mark.parametrize("struct", STRUCTS)
def test_a_wrong_offset_would_be_seen(struct: str, toolchain: Toolchain, cache_dir: Path) -> None:
    wrong = STRUCTS[struct][1]().fields[-1]
    with pytest.raises(CompileError, match="static assertion"):
        compile_asserts(struct, [f'static_assert({offset(struct, wrong.name)} == {wrong.offset + 4}, "x");'], toolchain)
