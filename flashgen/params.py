"""The structs that kernels take, for ctypes, parsed out of the C++ headers that own them: one truth for both."""

from __future__ import annotations

import ctypes
import hashlib
import re
from dataclasses import dataclass
from functools import cache

from flashgen.generator.errors import FlashgenError
from flashgen.generator.paths import INCLUDE

HEADER = INCLUDE / "flashgen" / "attention" / "params.h"
BACKWARD_HEADER = INCLUDE / "flashgen" / "attention" / "backward_params.h"
TENSOR_MAP_BYTES = 128
TENSOR_MAP_ALIGNMENT = 64

_STRUCT = r"struct\s+{}\s*\{{(?P<body>[^{{}}]*)\}}\s*;"
_FIELD = re.compile(
    r"(?P<type>TensorMap|float|int|long long|(?:long long|[A-Za-z_]\w*)\s*\*)\s+(?P<names>\w+(?:\s*,\s*\w+)*)\s*;"
)


class ParamsError(FlashgenError):
    """The params header holds something that the parser does not take."""


@dataclass(frozen=True)
class Field:
    """One field: where it lies in the struct, in bytes."""

    name: str
    type: str
    offset: int
    size: int


@dataclass(frozen=True)
class Layout:
    """The struct as a C++ compiler lays it out."""

    fields: tuple[Field, ...]
    size: int
    alignment: int


def parse(text: str, name: str = "ForwardParams") -> Layout:
    """The layout of ``struct name`` in a header's text; ParamsError names the line that it does not take."""
    text = re.sub(r"//[^\n]*", "", re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL))
    struct = re.search(_STRUCT.format(re.escape(name)), text)
    if struct is None:
        raise ParamsError(f"no `struct {name} {{ ... }};` in the params header")
    fields: list[Field] = []
    offset, alignment = 0, 1
    for line in struct["body"].splitlines():
        line = line.strip()
        if not line:
            continue
        match = _FIELD.fullmatch(line)
        if match is None:
            raise ParamsError(f"params header: got `{line}`; legal: `type name;`, type one of {', '.join(_SIZES)} (T*)")
        kind = "pointer" if match["type"].endswith("*") else match["type"]
        size, align = _SIZES[kind]
        for member in re.split(r"\s*,\s*", match["names"]):
            if any(field.name == member for field in fields):
                raise ParamsError(f"params header: field {member} stands there twice")
            offset = -(-offset // align) * align
            fields.append(Field(member, kind, offset, size))
            offset += size
            alignment = max(alignment, align)
    if not fields:
        raise ParamsError(f"params header: struct {name} has no fields")
    return Layout(tuple(fields), -(-offset // alignment) * alignment, alignment)


_SIZES = {
    "TensorMap": (TENSOR_MAP_BYTES, TENSOR_MAP_ALIGNMENT),
    "pointer": (8, 8),
    "int": (4, 4),
    "long long": (8, 8),
    "float": (4, 4),
}
_CTYPES: dict[str, type] = {
    "TensorMap": ctypes.c_ubyte * TENSOR_MAP_BYTES,
    "pointer": ctypes.c_void_p,
    "int": ctypes.c_int,
    "long long": ctypes.c_longlong,
    "float": ctypes.c_float,
}


def structure(layout: Layout, name: str = "ForwardParams") -> type[ctypes.Structure]:
    """A ctypes.Structure with exactly that layout. Padding is spelled out: ctypes knows no alignas before 3.13."""
    members: list[tuple[str, type]] = []
    end = 0
    for field in layout.fields:
        if field.offset > end:
            members.append((f"_padding_{end}", ctypes.c_ubyte * (field.offset - end)))
        members.append((field.name, _CTYPES[field.type]))
        end = field.offset + field.size
    if layout.size > end:
        members.append((f"_padding_{end}", ctypes.c_ubyte * (layout.size - end)))
    made = type(name, (ctypes.Structure,), {"_fields_": members, "__doc__": "Mirror of the C++ struct."})
    if ctypes.sizeof(made) != layout.size or any(getattr(made, f.name).offset != f.offset for f in layout.fields):
        raise ParamsError(f"{name}: ctypes lays the struct out otherwise than C++")
    return made


@cache
def forward_layout() -> Layout:
    """The layout of ForwardParams in the header that ships."""
    return parse(HEADER.read_text(encoding="utf-8"))


@cache
def forward_digest() -> str:
    """sha256 of that layout: machine code and runtime must have the same one."""
    return hashlib.sha256(repr(forward_layout()).encode()).hexdigest()


@cache
def forward_params() -> type[ctypes.Structure]:
    """ForwardParams as a ctypes.Structure, made on first use."""
    return structure(forward_layout())


@cache
def backward_layout() -> Layout:
    """The layout of BackwardParams in the header that ships."""
    return parse(BACKWARD_HEADER.read_text(encoding="utf-8"), "BackwardParams")


@cache
def backward_digest() -> str:
    """sha256 of that layout."""
    return hashlib.sha256(repr(backward_layout()).encode()).hexdigest()


@cache
def backward_params() -> type[ctypes.Structure]:
    """BackwardParams as a ctypes.Structure, made on first use."""
    return structure(backward_layout(), "BackwardParams")


def set_numbers(params: ctypes.Structure, geometry: object) -> None:
    """The numbers of a geometry into the arguments: all but the grid, which the driver gets."""
    for name, value in vars(geometry).items():
        if name != "grid":
            setattr(params, name, value)
