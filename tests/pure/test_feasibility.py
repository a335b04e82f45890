"""Shared memory and registers, against numbers worked out by hand."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashgen.generator import Epilogue, KernelSpec
from flashgen.generator.feasibility import TileChoice, fits, problem
from flashgen.generator.footprint import (
    SMEM_LIMIT,
    SWIZZLES,
    accumulator_limit,
    accumulator_registers,
    natural_swizzle,
    register_pool,
    smem_table,
    smem_total,
    usual_swizzle,
)

D128 = KernelSpec.forward(head_dim=128)
CHOICE = TileChoice(128, 128, 2, 1, 2, 24, 240, True, True, Epilogue.tile, 128, 128)


@pytest.mark.parametrize(
    ("qk", "v", "m", "n", "stages", "epilogue", "swizzles", "total"),
    [
        # 65536 + 81920 + 81920 = 229376, and 160 bytes of tiles and barriers take another KiB.
        (256, 256, 128, 80, 2, "registers", (128, 128), 230_400),
        # 32768 + 65536 + 65536 + 32768 = 196608.
        (128, 128, 128, 128, 2, "tile", (128, 128), 197_632),
        # 49152 + 86016 + 57344 + 32768 = 225280.
        (192, 128, 128, 112, 2, "tile", (128, 128), 226_304),
        # 72 lies as 80 in rows of 32 bytes: 192 * 160 = 30720 for q and out, 2 * 112 * 160 = 35840 for k and v: 133120.
        (72, 72, 192, 112, 2, "tile", (32, 32), 134_144),
        # and as 128 in rows of 128 bytes: 49152 for q and out, 57344 for k and v: 212992.
        (72, 72, 192, 112, 2, "tile", (128, 128), 214_016),
        # 8 lies as 16: q 2048, k 512, v 512, each on its own KiB: 2048, 3072, ends 3584; the tiles start at 4096 and
        # take 32 bytes, the barriers 8 * (2 + 4 + 4).
        (8, 8, 64, 16, 1, "registers", (32, 32), 5_120),
        # q 64 * 64 = 4096, k 3 * 16 * 64 = 3072, v 3 * 16 * 96 = 4608, out 64 * 96 = 6144: out starts at 12288 and ends
        # at 18432; tiles and barriers end at 18432 + 32 + 8 * (2 + 12 + 4) = 18608.
        (32, 48, 64, 16, 3, "tile", (64, 32), 19_456),
    ],
)
def test_shared_memory_by_hand(
    qk: int, v: int, m: int, n: int, stages: int, epilogue: str, swizzles: tuple[int, int], total: int
) -> None:
    spec = KernelSpec.forward(head_dim=qk, head_dim_v=v)
    assert smem_total(smem_table(spec, m, n, stages, Epilogue(epilogue), swizzles)) == total


def test_shared_memory_rows_of_d256() -> None:
    rows = smem_table(KernelSpec.forward(head_dim=256), 128, 80, 2, Epilogue.registers, (128, 128))
    assert [(row.name, row.offset, row.bytes) for row in rows] == [
        ("q", 0, 65536),
        ("k", 65536, 81920),
        ("v", 147456, 81920),
        ("tile", 229376, 32),
        ("barriers", 229408, 128),
        ("padding", 229536, 864),
    ]


@given(
    qk=st.integers(1, 32),
    v=st.integers(1, 32),
    groups=st.integers(1, 3),
    blocks=st.integers(1, 16),
    stages=st.integers(1, 5),
    epilogue=st.sampled_from(Epilogue),
    swizzles=st.tuples(st.sampled_from(SWIZZLES), st.sampled_from(SWIZZLES)),
)
def test_shared_memory_rows_follow_each_other(
    qk: int, v: int, groups: int, blocks: int, stages: int, epilogue: Epilogue, swizzles: tuple[int, int]
) -> None:
    spec = KernelSpec.forward(head_dim=8 * qk, head_dim_v=8 * v)
    rows = smem_table(spec, 64 * groups, 16 * blocks, stages, epilogue, swizzles)
    for before, after in itertools.pairwise(rows):
        assert 0 <= after.offset - (before.offset + before.bytes) < 1024
    assert all(row.offset % 1024 == 0 for row in rows if row.name in ("q", "k", "v", "out"))
    assert all(row.offset % 8 == 0 for row in rows)
    assert smem_total(rows) % 1024 == 0


@pytest.mark.parametrize(
    ("block_n", "head_dim_v", "registers"),
    [(176, 128, 88 + 44 + 64), (128, 64, 64 + 32 + 32), (80, 256, 40 + 20 + 128), (112, 72, 56 + 28 + 36)],
)
def test_accumulators_by_hand(block_n: int, head_dim_v: int, registers: int) -> None:
    assert accumulator_registers(block_n, head_dim_v) == registers


def test_limits_of_the_usual_splits() -> None:
    assert [accumulator_limit(1, 248), accumulator_limit(2, 240), accumulator_limit(3, 160)] == [216, 216, 132]


def test_the_pool_is_what_a_launch_gives_out() -> None:
    # 384 threads: 65536 / 384 = 170.7, so 168 each. 512 threads: 128 each. 256 threads: 248, the compiler's most.
    assert [register_pool(1), register_pool(2), register_pool(3)] == [248 * 256, 168 * 384, 128 * 512]


@pytest.mark.parametrize(
    ("changes", "key", "parts"),
    [
        ({"block_n": 256}, "tile", ("328704 bytes", "232448 are available", "tile {m: 128, n: 160}, stages: 2")),
        ({"block_m": 100}, "tile", ("got 100", "legal: 128")),
        ({"block_m": 192}, "tile", ("got 192", "legal: 128", "warpgroups: 3 with m: 192")),
        ({"block_n": 100}, "tile", ("got 100", "multiples of 16 from 16 to 256", "nearest: 96")),
        ({"block_n": 272}, "tile", ("got 272", "nearest: 256")),
        ({"block_n": 0}, "tile", ("got 0", "nearest: 16")),
        ({"consumer_warpgroups": 4}, "warpgroups", ("got 4", "legal: 1 to 3")),
        ({"stages": 1}, "stages", ("got 1", "2 or more with overlap")),
        ({"stages": 0, "overlap": False}, "stages", ("got 0", "1 or more")),
        ({"stages": 50}, "tile", ("50 stages", "tile {m: 128, n: 128}, stages: 2")),
        ({"stages": 10**15}, "tile", ("tile {m: 128, n: 128}, stages: 2",)),
        ({"producer_registers": 32}, "registers", ("65536", "64512", "{producer: 24, consumer: 240}")),
        ({"producer_registers": 25}, "registers", ("got 25", "multiples of 8 from 24 to 256")),
        ({"consumer_registers": 264}, "registers", ("got 264", "multiples of 8 from 24 to 256")),
        ({"producer_registers": 200, "consumer_registers": 144}, "registers", ("producer 200 and consumer 144",)),
        ({"consumer_registers": 176}, "tile", ("160 accumulator registers", "152 are available", "n: 112")),
        (
            {"consumer_warpgroups": 1, "block_m": 64, "producer_registers": 56, "consumer_registers": 248},
            "pingpong",
            ("1 consumer warpgroup",),
        ),
    ],
)
def test_refusals_say_got_limit_and_nearest(changes: dict[str, object], key: str, parts: tuple[str, ...]) -> None:
    error = problem(D128, replace(CHOICE, **changes))  # type: ignore[arg-type]
    assert error is not None
    assert error.key == key
    for part in parts:
        assert part in str(error)


def test_accumulators_of_three_warpgroups() -> None:
    wide = TileChoice(192, 128, 2, 1, 3, 32, 160, True, True, Epilogue.tile, 128, 128)
    error = problem(D128, wide)
    assert error is not None
    assert "160 accumulator registers a thread; 132 are available" in str(error)
    assert "tile {m: 192, n: 80}" in str(error)
    assert problem(KernelSpec.forward(head_dim=64), wide) is None


def test_a_swizzle_has_three_widths() -> None:
    assert problem(D128, replace(CHOICE, swizzle_qk=64, swizzle_v=32)) is None
    error = problem(D128, replace(CHOICE, swizzle_v=100))
    assert error is not None
    assert error.key == "swizzle"
    assert "swizzle v: got 100; legal: 32, 64, 128 bytes; nearest: 128" in str(error)


@pytest.mark.parametrize(
    ("head_dim", "natural", "usual"),
    # 72 * 2 bytes are no whole 32-byte sectors; 80 * 2 are, but only in the narrowest swizzle.
    [(64, 128, 128), (72, 32, 128), (80, 32, 128), (96, 64, 64), (88, 64, 128), (160, 64, 64), (8, 32, 128)],
)
def test_swizzles_of_a_head_dim(head_dim: int, natural: int, usual: int) -> None:
    assert natural_swizzle(head_dim, 2) == natural
    assert usual_swizzle(head_dim, 2) == usual


@given(qk=st.integers(1, 32), v=st.integers(1, 32), groups=st.integers(1, 3), blocks=st.integers(1, 16))
def test_a_choice_fits_or_the_refusal_names_one_that_does(qk: int, v: int, groups: int, blocks: int) -> None:
    spec = KernelSpec.forward(head_dim=8 * qk, head_dim_v=8 * v)
    producer, consumer = {1: (56, 248), 2: (24, 240), 3: (32, 160)}[groups]
    choice = TileChoice(
        64 * groups, 16 * blocks, 2, 1, groups, producer, consumer, True, groups > 1, Epilogue.tile, 64, 64
    )  # fmt: skip
    error = problem(spec, choice)
    assert (error is None) == fits(spec, choice)
    if error is None:
        assert smem_total(smem_table(spec, choice.block_m, choice.block_n, 2, Epilogue.tile, (64, 64))) <= SMEM_LIMIT
    else:
        assert "nearest that fits: tile {m:" in str(error)
