"""Tile counters of launches: shared along a stream, and one of its own for each launch that is captured."""

from __future__ import annotations

import pytest
import torch

from flashgen import bound as bound_module
from flashgen.bound import BoundAttention
from flashgen.counters import COUNTER_BYTES
from flashgen.launch import Call
from tests.pure.fake_machine import STREAM, Machine, tensors


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def test_launches_on_one_stream_share_a_counter_and_captured_ones_never(machine: Machine) -> None:
    q, k, v = tensors()
    eager = machine.run(q, k, v, True).params.tile_counter
    assert machine.run(q, k, v[:, :, :, :64], True).params.tile_counter == eager
    machine.capturing = True
    packed = dict(machine.launcher._launches)
    captured = [machine.run(q, k, v, True).params.tile_counter for _ in range(3)]
    assert len({eager, None, *captured}) == 5
    assert machine.cuda.zeroed[1:] == [(address, COUNTER_BYTES, STREAM) for address in captured]
    assert machine.launcher._launches == packed
    machine.capturing, machine.stream = False, 0x99
    assert machine.run(q, k, v, True).params.tile_counter not in (eager, None)


def test_a_bound_call_counts_for_itself_wherever_it_is_captured(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    q, k, v = tensors()
    bound = BoundAttention(q, k, v, torch.empty_like(q), None, True, 1.0)
    monkeypatch.setattr(bound_module, "_launcher", machine.launcher)
    call = machine.launcher.call_for(q, k, v, bound.out, True, 1.0)
    assert isinstance(call, Call)
    bound._call = call
    for machine.capturing in (False, True, True, False):
        bound()
    first, *captured, last = [got.params.tile_counter for got in machine.cuda.launched]
    assert (first, len({first, *captured})) == (last, 3)
    assert [address for address, _, _ in machine.cuda.zeroed] == [first, *captured]


def test_a_captured_call_that_is_copied_first_takes_one_counter(machine: Machine) -> None:
    q, k, v = tensors()
    machine.capturing = True
    machine.run(torch.zeros(q.numel() + 1).half()[1:].view(q.shape), k, v, True)
    assert [address for address, _, _ in machine.cuda.zeroed] == [machine.cuda.launched[0].params.tile_counter]
