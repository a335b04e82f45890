"""Results that may not be written where they were asked for: over an operand, over each other, over themselves."""

from __future__ import annotations

import pytest
import torch

import flashgen
from flashgen.errors import ArgumentError
from flashgen.generator import KernelSpec
from flashgen.overlap import byte_range, overlaps_itself


@pytest.mark.parametrize(
    ("shape", "strides", "overlap"),
    [
        ((2, 5, 4, 16), (320, 64, 16, 1), False),
        ((2, 5, 4, 16), (16, 128, 32, 1), False),
        ((2, 5, 4, 16), (16, 120, 32, 1), True),
        ((2, 5, 4, 16), (320, 64, 8, 1), True),
        ((2, 5, 4, 16), (0, 64, 16, 1), True),
        ((1, 5, 4, 16), (0, 64, 16, 1), False),
        ((2, 0, 4, 16), (0, 0, 0, 1), False),
    ],
)
def test_elements_of_one_tensor(shape: tuple[int, ...], strides: tuple[int, ...], overlap: bool) -> None:
    assert overlaps_itself(shape, strides) is overlap


def test_a_tensor_spans_its_gaps_and_nothing_behind_its_last_element() -> None:
    room = torch.zeros(4, 10).half()
    start = room.data_ptr()
    assert byte_range(room[1:3, 2:5]) == range(start + 24, start + 24 + 26)
    assert byte_range(room[:1].expand(4, 10)) == range(start, start + 20)
    assert list(byte_range(room[:, :0])) == list(byte_range(room.to("meta"))) == []


@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_an_out_in_the_memory_of_an_operand_is_refused(name: str) -> None:
    room = torch.zeros(3 * 640).half()
    given = {x: torch.zeros(2, 5, 4, 16).half() for x in "qkv"}
    given[name] = room[640:1280].view(2, 5, 4, 16)
    alias = torch.from_numpy(room.numpy())  # another storage of the same memory
    for out in (given[name], room[648:1288].view(2, 5, 4, 16), alias[1272:1912].view(2, 5, 4, 16)):
        with pytest.raises(ArgumentError, match=rf"out: its memory overlaps that of {name}, .*empty_like\(out\)"):
            flashgen.bind(**given, out=out)
    for out in (room[:640].view(2, 5, 4, 16), room[1280:].view(2, 5, 4, 16)):
        assert flashgen.bind(**given, out=out)() is out


def test_so_is_an_lse_in_the_memory_of_another() -> None:
    kernel = flashgen.get_kernel(KernelSpec.forward(head_dim=16, dtype="fp16"))
    room = torch.zeros(3 * 640).half()
    q, out = room[:640].view(2, 5, 4, 16), room[640:1280].view(2, 5, 4, 16)
    k, v = torch.zeros(2, 2, 5, 4, 16).half().unbind()
    for name, first in (("q", 632), ("out", 1272)):
        lse = room[first : first + 80].view(torch.float32).view(2, 4, 5)
        with pytest.raises(ArgumentError, match=f"lse: its memory overlaps that of {name},"):
            kernel.into(q, k, v, out, lse)
    kernel.into(q, k, v, out, room[1280:1360].view(torch.float32).view(2, 4, 5))
