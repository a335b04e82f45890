"""What goes to the driver around a launch: contexts, counters and loading, without a GPU."""

from __future__ import annotations

import ctypes
import threading

import pytest

from flashgen import counters
from flashgen.counters import COUNTER_BYTES, PER_THREAD_STREAM, SLAB_COUNTERS, captured_counter, counter_address
from flashgen.errors import LaunchError
from flashgen.generator import KernelSpec, plan
from flashgen.loaded import LoadedKernel
from flashgen.tensormap import accepted, describe, encode
from tests.pure.fake_machine import STREAM, Machine, tensors

MAP = describe((2, 300, 4, 128), (153_600, 512, 128, 1), "fp16", (64, 64))


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


@pytest.mark.parametrize("status", [3, 201])
def test_describing_a_tensor_in_a_thread_without_a_context_gives_it_one(machine: Machine, status: int) -> None:
    machine.cuda.encode_statuses = [status]
    machine.run(*tensors())
    assert (machine.cuda.contexts_set, len(machine.cuda.encoded)) == (1, 4)


def test_it_is_tried_once_more_and_a_failure_is_not_remembered(machine: Machine) -> None:
    machine.cuda.encode_statuses = [201, 201]
    with pytest.raises(LaunchError, match=r"describing .* at 0x1000 failed: CUDA_ERROR_FAKE.*201"):
        encode(MAP, 0x1000, 0)
    assert not machine.cuda.encode_statuses
    machine.cuda.encode_statuses = [1]
    assert not accepted(MAP, 0x1000, 0)
    assert machine.cuda.contexts_set == 1
    assert accepted(MAP, 0x1000, 0)
    assert encode(MAP, 0x1000, 0) == (1).to_bytes(128, "little")


@pytest.mark.parametrize("late", [0, 1, 2])
def test_code_that_the_driver_refuses_sooner_or_later_fails_in_the_same_words(machine: Machine, late: int) -> None:
    made = plan(KernelSpec.forward(head_dim=64))
    kernel = LoadedKernel(made, b"broken")
    for _ in range(2):
        machine.cuda.load_statuses = [0] * late + [200]
        with pytest.raises(LaunchError, match=rf"^loading {made.name} failed: CUDA_ERROR_FAKE \(200\); .*this GPU"):
            kernel.functions(0)
    assert kernel.functions(0) == (0x33,)
    assert (machine.cuda.contexts, machine.cuda.mode) == ([], 0)


def test_a_counter_is_zeroed_once_on_the_stream_that_uses_it(machine: Machine) -> None:
    first, other, elsewhere = counter_address(0, STREAM), counter_address(0, 0), counter_address(1, STREAM)
    assert [counter_address(0, STREAM), counter_address(0, 0), counter_address(1, STREAM)] == [first, other, elsewhere]
    expected = [(first, COUNTER_BYTES, STREAM), (other, COUNTER_BYTES, 0), (elsewhere, COUNTER_BYTES, STREAM)]
    assert machine.cuda.zeroed == expected
    assert (ctypes.c_int * 2).from_address(first)[:] == [0, 0]
    assert (machine.cuda.contexts, machine.cuda.mode) == ([], 0)


def test_counters_lie_side_by_side_in_few_allocations(machine: Machine) -> None:
    found = [counter_address(0, stream) for stream in range(10, 10 + SLAB_COUNTERS + 1)]
    assert len(set(found)) == SLAB_COUNTERS + 1
    assert list(machine.cuda.allocated.values()) == [SLAB_COUNTERS * COUNTER_BYTES] * 2
    for address in found:
        start = next(a for a in machine.cuda.allocated if a <= address < a + SLAB_COUNTERS * COUNTER_BYTES)
        assert (address - start) % COUNTER_BYTES == 0


def test_every_captured_launch_has_a_counter_that_its_graph_zeroes(machine: Machine) -> None:
    shared = counter_address(0, STREAM)
    found = [captured_counter(0, STREAM) for _ in range(SLAB_COUNTERS)]
    assert len({shared, *found}) == SLAB_COUNTERS + 1
    assert machine.cuda.zeroed[1:] == [(address, COUNTER_BYTES, STREAM) for address in found]
    assert list(machine.cuda.allocated.values()) == [SLAB_COUNTERS * COUNTER_BYTES] * 2
    assert counter_address(0, STREAM) == shared
    assert (machine.cuda.contexts, machine.cuda.mode) == ([], 0)


def test_the_stream_of_each_thread_has_a_counter_though_threads_have_one_number(machine: Machine) -> None:
    found = []

    def twice() -> None:
        found.append([counter_address(device, PER_THREAD_STREAM) for device in (0, 0, 1)])

    twice()
    for _ in range(3):  # one after the other: they get one number where the system reuses it at once, as Linux does
        thread = threading.Thread(target=twice)
        thread.start()
        thread.join()
    assert len({address for addresses in found for address in addresses}) == 8
    assert all(first == second for first, second, _ in found)


def test_a_counter_that_could_not_be_zeroed_is_not_used(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.cuda.driver, "cuMemsetD8Async", lambda *_: 700)
    with pytest.raises(LaunchError, match="zeroing 8 bytes on cuda:0 failed"):
        counter_address(0, STREAM)
    monkeypatch.undo()
    assert counters._slots == {}
