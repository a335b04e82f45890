"""The params header is the one source of truth: what the parser takes, refuses, and lays out."""

from __future__ import annotations

import ctypes

import pytest

from flashgen.params import (
    BACKWARD_HEADER,
    HEADER,
    ParamsError,
    backward_digest,
    backward_layout,
    backward_params,
    forward_digest,
    forward_layout,
    forward_params,
    parse,
    structure,
)


def header(*lines: str) -> str:
    return "struct ForwardParams {\n" + "\n".join(lines) + "\n};\n"


def test_the_shipped_header_holds_what_a_launch_sets() -> None:
    names = [field.name for field in forward_layout().fields]
    assert names[:4] == ["q", "k", "v", "out"]
    assert {
        "lse", "tile_counter", "batch", "heads_q", "heads_kv", "seqlen_q", "seqlen_k", "m_blocks", "tiles",
        "heads_per_group", "scale_log2",
    } <= set(names)  # fmt: skip
    assert forward_layout().alignment == 64
    assert ctypes.sizeof(forward_params()) == forward_layout().size
    assert forward_layout().size % 64 == 0


def test_every_field_of_the_shipped_header_is_parsed() -> None:
    body = HEADER.read_text().split("struct ForwardParams {")[1].split("};")[0]
    assert len(forward_layout().fields) == sum(";" in line.split("//")[0] for line in body.splitlines())


def test_the_header_of_the_backward_holds_what_its_launch_sets() -> None:
    layout = backward_layout()
    names = [field.name for field in layout.fields]
    assert names[:4] == ["q", "k", "v", "dout"]
    strided = ("out", "dout", "dq", "dk", "dv")
    strides = {f"{name}_{which}_stride" for name in strided for which in ("batch", "row", "head")}
    assert strides <= set(names)
    assert {
        "out_data", "dout_data", "lse", "dlse", "lse_log2", "dpsum", "dq_accum", "dq_state", "dq", "dk", "dv", "batch",
        "heads_q", "heads_kv", "seqlen_q", "seqlen_k", "m_blocks", "n_blocks", "heads_per_group", "scale", "scale_log2",
        "next_tile",
    } == set(names) - strides - {"q", "k", "v", "dout"}  # fmt: skip
    assert ctypes.sizeof(backward_params()) == layout.size
    assert layout.size % 64 == 0
    body = BACKWARD_HEADER.read_text().split("struct BackwardParams {")[1].split("};")[0]
    assert len(layout.fields) == sum(";" in line.split("//")[0] for line in body.splitlines())
    assert backward_digest() != forward_digest()
    with pytest.raises(ParamsError, match="no `struct ForwardParams"):
        parse(BACKWARD_HEADER.read_text())


def test_offsets_follow_alignment_and_the_size_is_padded() -> None:
    layout = parse(header("int a;  // one", "long long b;", "float c;", "TensorMap m;", "int* p;", "int last;"))
    assert [(f.name, f.offset, f.size) for f in layout.fields] == [
        ("a", 0, 4), ("b", 8, 8), ("c", 16, 4), ("m", 64, 128), ("p", 192, 8), ("last", 200, 4),
    ]  # fmt: skip
    assert (layout.size, layout.alignment) == (256, 64)
    made = structure(layout)
    assert ctypes.sizeof(made) == 256
    value = made()
    value.b, value.p, value.last = 1 << 40, 0x1234, -5
    raw = bytes(value)
    assert int.from_bytes(raw[8:16], "little") == 1 << 40
    assert int.from_bytes(raw[192:200], "little") == 0x1234
    assert int.from_bytes(raw[200:204], "little", signed=True) == -5


def test_comments_may_hold_anything() -> None:
    layout = parse(header("/* int gone; */", "int a;  // float no; }", "// int neither;"))
    assert [field.name for field in layout.fields] == ["a"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("struct Other { int a; };", "no `struct ForwardParams"),
        (header(), "no fields"),
        (header("double a;"), "double a;"),
        (header("int a[3];"), r"int a\[3\];"),
        (header("int a"), "`int a`"),
        (header("int a;", "float a;"), "a stands there twice"),
    ],
)
def test_a_header_it_does_not_take_is_refused_by_line(text: str, said: str) -> None:
    with pytest.raises(ParamsError, match=said):
        parse(text)
