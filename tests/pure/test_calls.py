"""What is remembered between calls, what is shared between them, and what never is."""

from __future__ import annotations

import math
import threading

import pytest
import torch

from flashgen import calls
from flashgen.errors import ArgumentError, LaunchError
from tests.pure.fake_machine import Machine, tensors


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def test_a_second_call_makes_nothing_anew(machine: Machine) -> None:
    q, k, v = tensors()
    out = torch.empty_like(q)
    machine.launcher.into(q, k, v, out, None, False, None)
    encoded, packed = len(machine.cuda.encoded), machine.launcher._launches.copy()
    machine.launcher.into(q, k, v, out, None, False, None)
    assert (len(machine.cuda.encoded), machine.launcher._launches) == (encoded, packed)
    assert (len(machine.cuda.launched), len(machine.resolved)) == (2, 1)


def test_another_out_alone_costs_one_descriptor(machine: Machine) -> None:
    q, k, v = tensors()
    first, other = torch.empty_like(q), torch.empty_like(q)
    machine.launcher.into(q, k, v, first, None, False, None)
    before = len(machine.cuda.encoded)
    machine.launcher.into(q, k, v, other, None, False, None)
    assert [record.address for record in machine.cuda.encoded[before:]] == [other.data_ptr()]


@pytest.mark.parametrize("what", ["shape", "stride", "dtype", "mask", "scale", "stream"])
def test_whatever_identifies_a_call_makes_another_launch(machine: Machine, what: str) -> None:
    q, k, v = tensors()
    first = machine.run(q, k, v)
    if what == "shape":
        second = machine.run(q[:, :200], k, v)
        assert second.params.seqlen_q == 200
    elif what == "stride":
        second = machine.run(q.transpose(1, 2).contiguous().transpose(1, 2), k, v)
        assert second.maps["q"].strides != first.maps["q"].strides
    elif what == "dtype":
        assert machine.run(q.bfloat16(), k.bfloat16(), v.bfloat16()).maps["q"].data_type == 9
    elif what == "mask":
        machine.run(q, k, v, True)
        assert [spec.mask for spec in machine.resolved] == ["full", "causal"]
    elif what == "scale":
        assert machine.run(q, k, v, False, 1.0).params.scale_log2 == pytest.approx(math.log2(math.e))
    else:
        machine.stream = 0x99
        second = machine.run(q, k, v)
        assert second.stream == 0x99


def test_a_thread_without_a_context_gets_one(machine: Machine) -> None:
    machine.cuda.launch_statuses = [201]
    machine.run(*tensors())
    assert (machine.cuda.contexts_set, len(machine.cuda.launched)) == (1, 1)


def test_a_refused_launch_says_which_kernel_and_why(machine: Machine) -> None:
    machine.cuda.launch_statuses = [719]
    with pytest.raises(
        LaunchError, match=r"launching attention_fwd_fa3_sm90a_fp16_d128_full failed: CUDA_ERROR_FAKE.*719"
    ):
        machine.run(*tensors())


def test_memos_are_bounded(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "MAX_CALLS", 3)
    monkeypatch.setattr(calls, "MAX_LAUNCHES", 2)
    q, k, v = tensors()
    for length in range(1, 9):
        machine.run(q, k[:, :length], v[:, :length])
    assert (len(machine.launcher._calls), len(machine.launcher._launches)) == (3, 2)
    assert [got.params.seqlen_k for got in machine.cuda.launched] == list(range(1, 9))


def test_threads_get_their_own_arguments(machine: Machine) -> None:
    q, k, v = tensors(b=1, hq=1, hkv=1)
    errors: list[Exception] = []

    def work(length: int) -> None:
        try:
            for _ in range(20):
                machine.launcher(q[:, :length], k, v, True, None, False)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(length,)) for length in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    lengths = [got.params.seqlen_q for got in machine.cuda.launched]
    assert sorted(lengths) == sorted([length for length in range(1, 9) for _ in range(20)])
    assert all(got.maps["out"].dims[1] == got.params.seqlen_q for got in machine.cuda.launched)


def test_work_goes_to_the_device_of_q_whichever_is_current(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    current, entered = [5], []

    class Guard:
        def __init__(self, device: int) -> None:
            entered.append(device)

        def __enter__(self) -> None:
            self.before, current[0] = current[0], -1

        def __exit__(self, *_: object) -> None:
            current[0] = self.before

    monkeypatch.setattr(calls, "_current_device", lambda: current[0])
    monkeypatch.setattr(torch.cuda, "device", Guard)
    machine.run(*tensors())
    assert (entered, current) == ([-1], [5])


def test_a_q_on_another_device_than_k_is_refused_before_any_switch(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "_current_device", lambda: 0)
    q, k, v = tensors()
    with pytest.raises(ArgumentError, match="k is on meta and q on cpu"):
        machine.run(q, k.to("meta"), v)
    with pytest.raises(ArgumentError, match="k is on meta and q on cpu"):
        machine.launcher.into(q, k.to("meta"), v, q, None, False, None)
