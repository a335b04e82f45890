"""From tensors to the arguments that the driver gets for a backward, without a GPU."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from flashgen import calls
from flashgen.errors import ArgumentError, LaunchError
from flashgen.generator import KernelSpec, plan_backward
from flashgen.loaded import LoadedKernel
from flashgen.loading import kernel_for
from tests.pure.fake_backward import BackwardMachine, operands


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> BackwardMachine:
    return BackwardMachine(monkeypatch)


@pytest.mark.parametrize("deterministic", [False, True])
def test_arguments_of_a_launch(machine: BackwardMachine, deterministic: bool) -> None:
    given = operands(dlse=True)
    dq, dk, dv = machine.backward(given, None, True, deterministic)
    before, main, after = machine.cuda.launched
    made = machine.plan
    assert machine.resolved == [
        KernelSpec.backward(
            head_dim=128, head_dim_v=64, dtype="fp16", mask="causal", deterministic=deterministic
        )
    ]  # fmt: skip
    assert machine.cuda.loaded == [b"CUBIN"]
    assert [name.decode() for name in machine.cuda.kernels] == [*made.entry_points]
    assert machine.cuda.shared == [(0x100, 0), (0x101, made.smem_bytes), (0x102, 0)]
    assert [each.function for each in (before, main, after)] == [0x100, 0x101, 0x102]
    m_blocks, n_blocks = -(-300 // made.block_m), -(-500 // made.block_n)
    assert [each.grid for each in (before, main, after)] == [
        (m_blocks * 8, 1, 1), (n_blocks * 4, 1, 1), (m_blocks * 8, 1, 1)
    ]  # fmt: skip
    assert [each.block[0] for each in (before, main, after)] == [256, made.threads, 256]
    assert [each.shared_memory for each in (before, main, after)] == [0, made.smem_bytes, 0]
    assert {each.stream for each in (before, main, after)} == {machine.stream}
    params = main.params
    assert bytes(before.params) == bytes(params) == bytes(after.params)
    names = ("batch", "heads_q", "heads_kv", "seqlen_q", "seqlen_k", "m_blocks", "n_blocks")
    assert [getattr(params, name) for name in names] == [2, 4, 2, 300, 500, m_blocks, n_blocks]
    assert params.scale == pytest.approx(1 / math.sqrt(128), rel=1e-6)
    assert params.scale_log2 == pytest.approx(math.log2(math.e) / math.sqrt(128), rel=1e-6)
    assert (params.out_data, params.dout_data) == (given.out.data_ptr(), given.dout.data_ptr())
    assert given.dlse is not None
    assert (params.lse, params.dlse) == (given.lse.data_ptr(), given.dlse.data_ptr())
    assert (params.dq, params.dk, params.dv) == (dq.data_ptr(), dk.data_ptr(), dv.data_ptr())
    for name, x in (("out", given.out), ("dout", given.dout), ("dq", dq), ("dk", dk), ("dv", dv)):
        strides = tuple(getattr(params, f"{name}_{which}_stride") for which in ("batch", "row", "head"))
        assert strides == x.stride()[:3], name
    assert {name: each.address for name, each in main.maps.items()} == {
        name: getattr(given, name).data_ptr() for name in ("q", "k", "v", "dout")
    }
    assert {name: each.box for name, each in main.maps.items()} == {
        "q": (made.chunk_qk, made.block_m, 1, 1), "dout": (made.chunk_v, made.block_m, 1, 1),
        "k": (made.chunk_qk, made.block_n, 1, 1), "v": (made.chunk_v, made.block_n, 1, 1),
    }  # fmt: skip
    assert (main.maps["dout"].dims, main.maps["v"].dims) == ((64, 300, 4, 2), (64, 500, 2, 2))
    rows = m_blocks * made.block_m * 8
    parts = [params.dq_accum, params.lse_log2, params.dpsum]
    assert parts[1] - parts[0] >= rows * 128 * 4
    assert parts[2] - parts[1] >= rows * 4
    assert [(part - parts[0]) % 256 for part in parts] == [0, 0, 0]
    assert params.dq_state - parts[2] >= rows * 4


def test_a_persistent_kernel_counts_tiles_in_memory_of_its_own(machine: BackwardMachine) -> None:
    given = operands(b=40, sq=9, d=64)
    main = machine.run_backward(given)[1]
    made, params = machine.plan, main.params
    assert made.persistent
    blocks = params.m_blocks * params.batch * params.heads_q
    assert params.next_tile >= params.dq_state + blocks * 8
    assert params.next_tile + 8 <= params.dq_accum + made.workspace_bytes(params.batch, params.heads_q, params.seqlen_q)
    tiles = params.n_blocks * params.batch * params.heads_kv
    assert tiles > 132
    assert main.grid == (132, 1, 1)


def test_without_a_gradient_of_lse_its_address_is_null(machine: BackwardMachine) -> None:
    assert machine.run_backward(operands())[1].params.dlse is None


def test_the_workspace_is_linear_in_the_rows() -> None:
    made = plan_backward(KernelSpec.backward(head_dim=128))
    rows = 256 * made.block_m
    sizes = [made.workspace_bytes(1, 4, rows * times) for times in (1, 2, 4)]
    assert sizes[1] == 2 * sizes[0] == sizes[2] // 2
    assert sizes[0] == 4 * (rows * (128 + 2) * 4 + 256 * 8)


COPIED: dict[str, Callable[[Tensor], Tensor]] = {
    "last": lambda x: torch.zeros(*x.shape, 2).half()[..., 0],
    "rows": lambda x: torch.zeros(*x.shape[:3], x.shape[3] + 3).half()[..., : x.shape[3]],
    "address": lambda x: torch.zeros(x.numel() + 1).half()[1:].view(x.shape),
    "sum": lambda x: torch.zeros(1).half().expand(x.shape),
}


@pytest.mark.parametrize("name", ["dout", "q", "k", "v", "out"])
@pytest.mark.parametrize("how", COPIED)
def test_what_cannot_be_read_in_rows_of_16_bytes_is_copied_and_only_that(
    machine: BackwardMachine, how: str, name: str
) -> None:
    given = operands()
    bad = COPIED[how](getattr(given, name))
    main = machine.run_backward(given._replace(**{name: bad}))[1]
    addresses = {each: main.maps[each].address for each in ("dout", "q", "k", "v")} | {"out": main.params.out_data}
    for each, address in addresses.items():
        assert (address == getattr(given, each).data_ptr()) is (each != name)
    assert addresses[name] not in (bad.data_ptr(), 0)
    if name in ("dout", "out"):
        assert getattr(main.params, f"{name}_row_stride") == 4 * 64
    if name == "dout":
        assert main.params.dout_data == main.maps["dout"].address


def test_an_expanded_dout_is_used_as_it_is_where_the_driver_takes_stride_0(machine: BackwardMachine) -> None:
    given = operands()
    expanded = given.dout[:, :1].expand(given.dout.shape)
    main = machine.run_backward(given._replace(dout=expanded))[1]
    assert (main.maps["dout"].address, main.params.dout_row_stride) == (expanded.data_ptr(), 0)
    machine.cuda.refuse_stride_zero = True
    calls.forget_calls()
    assert len(machine.backward._calls) == 0
    from flashgen import tensormap

    tensormap.encode.cache_clear()
    main = machine.run_backward(given._replace(dout=expanded))[1]
    assert main.params.dout_row_stride == 4 * 64
    assert main.params.dout_data == main.maps["dout"].address != expanded.data_ptr()


@pytest.mark.parametrize("name", ["lse", "dlse"])
def test_lse_and_its_gradient_are_made_contiguous(machine: BackwardMachine, name: str) -> None:
    given = operands(dlse=True)
    bad = torch.zeros(1).expand(2, 4, 300)
    params = machine.run_backward(given._replace(**{name: bad}))[1].params
    assert getattr(params, name) not in (bad.data_ptr(), None)


def test_a_second_call_makes_nothing_anew(machine: BackwardMachine) -> None:
    given, to = operands(), tuple(torch.zeros_like(x) for x in operands()[1:4])
    for _ in range(3):
        machine.backward.into(given, to, None, False, False)  # type: ignore[arg-type]
    assert (len(machine.resolved), len(machine.backward._calls), len(machine.cuda.encoded)) == (1, 1, 4)
    assert len(machine.cuda.launched) == 9


def test_the_number_of_keys_picks_the_kernel_that_is_launched(machine: BackwardMachine) -> None:
    machine.backward._resolve = lambda spec, keys: LoadedKernel(kernel_for(spec, keys).plan, b"CUBIN")
    before = {keys: machine.run_backward(operands(sk=keys, dv=128))[0] for keys in (767, 768)}
    assert {keys: each.grid[0] for keys, each in before.items()} == {767: 8 * 5, 768: 8 * 4}, "64 rows a block, then 80"


@pytest.mark.parametrize("sizes", [{"b": 0}, {"sq": 0}, {"sk": 0}, {"hq": 0, "hkv": 0}])
def test_nothing_to_compute_launches_nothing_and_gives_zeros(machine: BackwardMachine, sizes: dict[str, int]) -> None:
    given = operands(**sizes)
    gradients = tuple(torch.full_like(x, math.nan) for x in given[1:4])
    machine.backward.into(given, gradients, None, True, False)  # type: ignore[arg-type]
    assert machine.cuda.launched == []
    assert all(bool(x.eq(0).all()) for x in gradients)


def test_a_thread_without_a_context_gets_one_and_a_failure_says_which_kernel(machine: BackwardMachine) -> None:
    machine.cuda.launch_statuses = [201]
    assert len(machine.run_backward(operands())) == 3
    assert machine.cuda.contexts_set == 1
    machine.cuda.launch_statuses = [0, 719]
    with pytest.raises(LaunchError, match=r"launching attention_bwd_fa3_sm90a_fp16_d128x64_full failed.*719"):
        machine.run_backward(operands())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"dout": torch.zeros(2, 300, 4, 128).half()}, r"dout: got shape .* 128\); expected .* 64\)"),
        ({"dout": torch.zeros(2, 300, 4, 64)}, "dout: got dtype torch.float32; expected torch.float16"),
        ({"out": torch.zeros(2, 300, 4, 64, device="meta").half()}, "out: got device meta"),
        ({"lse": torch.zeros(2, 300, 4)}, "lse: got shape"),
        ({"lse": torch.zeros(2, 4, 300).half()}, "lse: got dtype"),
        ({"dlse": torch.zeros(2, 4, 1)}, "dlse: got shape"),
        ({"q": torch.zeros(2, 300, 4, 72).half()}, "head dim of q and k: got 72 and 128"),
    ],
)  # fmt: skip
def test_operands_that_do_not_go_together_are_refused(
    machine: BackwardMachine, change: dict[str, Tensor], said: str
) -> None:
    with pytest.raises(ArgumentError, match=said):
        machine.run_backward(operands()._replace(**change))
    assert machine.cuda.launched == []
