"""From tensors to the arguments that the driver gets, without a GPU."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch

from flashgen import counters
from flashgen.errors import ArgumentError
from flashgen.generator import plan
from flashgen.launch import geometry, heads_per_group
from tests.pure.fake_machine import STREAM, Machine, tensors


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def test_arguments_of_a_launch(machine: Machine) -> None:
    q, k, v = tensors()
    out, lse = machine.launcher(q, k, v, True, None, True)
    assert lse is not None
    got, made = machine.cuda.launched[-1], plan(machine.resolved[0])
    assert (machine.cuda.loaded, machine.cuda.kernels) == ([b"CUBIN"], [made.name.encode()])
    assert machine.cuda.shared == [(0x33, made.smem_bytes)]
    blocks = -(-300 // made.block_m)
    params = {name: getattr(got.params, name) for name in ("batch", "heads_q", "heads_kv", "seqlen_q", "seqlen_k")}
    assert params == {"batch": 2, "heads_q": 4, "heads_kv": 2, "seqlen_q": 300, "seqlen_k": 500}
    assert (got.params.m_blocks, got.params.tiles, got.params.heads_per_group) == (blocks, blocks * 8, 8)
    assert got.params.scale_log2 == pytest.approx(math.log2(math.e) / math.sqrt(128), rel=1e-6)
    assert (got.params.lse, got.params.out_data) == (lse.data_ptr(), out.data_ptr())
    assert got.params.tile_counter == counters.counter_address(-1, STREAM)
    strides = (got.params.out_batch_stride, got.params.out_row_stride, got.params.out_head_stride)
    assert strides == out.stride()[:3]
    assert (got.grid, got.block) == ((min(132, blocks * 8), 1, 1), (made.threads, 1, 1))
    assert (got.shared_memory, got.stream, got.function, got.attributes) == (made.smem_bytes, STREAM, 0x33, 0)
    assert [got.maps[name].address for name in ("q", "k", "v", "out")] == [x.data_ptr() for x in (q, k, v, out)]
    assert (got.maps["q"].dims, got.maps["k"].dims) == ((128, 300, 4, 2), (128, 500, 2, 2))
    assert got.maps["k"].strides == (2 * 128 * 2, 128 * 2, 500 * 2 * 128 * 2)
    assert got.maps["q"].box == (made.chunk_qk, 64, 1, 1)
    assert got.maps["v"].box == (made.chunk_v, made.block_n, 1, 1)
    assert {got.maps[name].data_type for name in ("q", "k", "v", "out")} == {6}


def test_without_lse_its_address_is_null(machine: Machine) -> None:
    assert machine.launcher(*tensors(), False, None, False)[1] is None
    assert machine.cuda.launched[-1].params.lse is None


@pytest.mark.parametrize(("scheduler", "grid"), [("single", 24), ("static", 24), ("dynamic", 24)])
def test_the_grid_is_all_tiles_or_at_most_one_block_a_multiprocessor(scheduler: str, grid: int) -> None:
    made = SimpleNamespace(
        block_m=128, scheduler=scheduler, spec=SimpleNamespace(head_dim_v=64, dtype=SimpleNamespace(bytes=2))
    )
    few = geometry(made, (2, 300, 4, 64), (2, 9, 2, 64), 1.0, 132)  # type: ignore[arg-type]
    assert (few.m_blocks, few.tiles, few.grid) == (3, 24, grid)
    many = geometry(made, (70_000, 300, 4, 64), (70_000, 9, 2, 64), 1.0, 132)  # type: ignore[arg-type]
    assert many.grid == (840_000 if scheduler == "single" else 132)
    # 64 MiB hold the keys and values of two heads of 131,072 keys; each serves two query heads.
    long = geometry(made, (2, 1, 8, 64), (2, 131_072, 4, 64), 1.0, 132)  # type: ignore[arg-type]
    assert long.heads_per_group == 4
    for q, k in (
        ((1 << 30, 1, 4, 64), (1 << 30, 1, 4, 64)),
        (((1 << 31) - 1, 1, 1, 64), ((1 << 31) - 1, 1, 1, 64)),  # a block that asks for one more tile would wrap round
        ((1, 1, 1, 64), (1, (1 << 31) + 5, 1, 64)),  # an expanded tensor holds that many keys in no memory
        ((1, 1 << 30, 1, 64), (1, 1 << 30, 1, 64)),
    ):
        with pytest.raises(ArgumentError, match="at most 2147418112"):
            geometry(made, q, k, 1.0, 132)  # type: ignore[arg-type]


def test_few_heads_of_a_group_where_short_tiles_come_last() -> None:
    made = SimpleNamespace(
        block_m=128, scheduler="dynamic", spec=SimpleNamespace(head_dim_v=128, dtype=SimpleNamespace(bytes=2))
    )
    groups = {
        seqlen: geometry(made, (16, seqlen, 16, 128), (16, seqlen, 16, 128), 1.0, 132).heads_per_group  # type: ignore[arg-type]
        for seqlen in (512, 1024, 2048, 4096)
    }
    assert groups == {512: 64, 1024: 32, 2048: 32, 4096: 16}


@pytest.mark.parametrize(
    ("heads", "group", "bytes_per_head", "expected"),
    [
        (512, 1, 1 << 18, 64),  # short: 64 heads at most
        (64, 1, 1 << 21, 16),  # what fits in 32 MiB
        (16, 1, 1 << 23, 8),  # 4 would fit: 8 in twice as much
        (16, 1, 1 << 25, 2),  # 64 MiB
        (64, 4, 1 << 24, 16),  # 4 key heads, each with 4 query heads
        (1, 1, 1 << 32, 1),  # one head, whatever it takes
        (66, 1, 1 << 20, 22),  # whole groups: three of 22, not two of 32 and one of 2
        (67, 1, 1 << 20, 23),  # no divisor near 32: three groups as even as they come
    ],
)
def test_heads_of_a_group(heads: int, group: int, bytes_per_head: int, expected: int) -> None:
    assert heads_per_group(heads, group, bytes_per_head) == expected


def test_strides_of_dimensions_of_size_one_are_made_legal(machine: Machine) -> None:
    q, k, v = tensors(b=1, hkv=1)
    odd = k.as_strided(k.shape, (3, k.stride(1), 5, 1))
    assert machine.run(q, odd, v).maps["k"].strides == (256, 16, 16)
    assert machine.cuda.launched[-1].maps["k"].address == odd.data_ptr()


def test_expanded_heads_are_described_with_stride_zero(machine: Machine) -> None:
    q, k, v = tensors(hkv=1)
    got = machine.run(q, k.expand(2, 500, 4, 128), v.expand(2, 500, 4, 128))
    assert got.maps["k"].strides[1] == 0
    assert got.maps["k"].address == k.data_ptr()


def test_stride_zero_is_copied_where_the_driver_refuses_it(machine: Machine) -> None:
    machine.cuda.refuse_stride_zero = True
    q, k, v = tensors(hkv=1)
    got = machine.run(q, k.expand(2, 500, 4, 128), v.expand(2, 500, 4, 128))
    assert got.maps["k"].dims == (128, 500, 4, 2)
    assert got.maps["k"].strides == (1024, 256, 512_000)
    assert got.maps["q"].address == q.data_ptr()


@pytest.mark.parametrize("how", ["last", "rows", "address"])
def test_what_no_descriptor_takes_is_copied_and_only_that(machine: Machine, how: str) -> None:
    q, _, v = tensors()
    bad = {
        "last": torch.zeros(2, 500, 2, 256).half()[..., ::2],
        "rows": torch.zeros(2, 500, 2, 131).half()[..., :128],
        "address": torch.zeros(2 * 500 * 2 * 128 + 1).half()[1:].view(2, 500, 2, 128),
    }[how]
    got = machine.run(q, bad, v)
    assert got.maps["k"].address not in (bad.data_ptr(), 0)
    assert got.maps["k"].strides == (512, 256, 256_000)
    assert (got.maps["q"].address, got.maps["v"].address) == (q.data_ptr(), v.data_ptr())


@pytest.mark.parametrize("sizes", [{"b": 0}, {"sq": 0}, {"sk": 0}, {"hq": 0, "hkv": 0}])
def test_nothing_to_compute_launches_nothing(machine: Machine, sizes: dict[str, int]) -> None:
    out, lse = machine.launcher(*tensors(**sizes), True, None, True)
    assert lse is not None
    assert machine.cuda.launched == []
    assert out.eq(0).all()
    assert lse.eq(-math.inf).all()
