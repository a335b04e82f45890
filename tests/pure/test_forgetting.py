"""What launchers remember is forgotten when other kernels are preferred, whatever other threads are at."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator

import pytest

from flashgen import calls
from flashgen.launchers import Launchers
from tests.pure.fake_machine import Machine, tensors


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def test_forgotten_calls_ask_for_their_kernel_again(machine: Machine) -> None:
    machine.run(*tensors())
    calls.forget_calls()
    machine.run(*tensors())
    assert len(machine.resolved) == 2


def test_a_call_begun_before_all_were_forgotten_is_not_remembered(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve = machine.resolve

    def late(*given: object) -> object:
        kernel = resolve(*given)  # type: ignore[arg-type]
        calls.forget_calls()  # as a load() in another thread
        return kernel

    monkeypatch.setattr(machine.launcher, "_resolve", late)
    machine.run(*tensors())
    assert machine.launcher._calls == {}
    monkeypatch.setattr(machine.launcher, "_resolve", resolve)
    for _ in range(2):
        machine.run(*tensors())
    assert len(machine.resolved) == 2


def test_a_launcher_made_while_the_others_are_counted_waits(machine: Machine) -> None:
    launchers, late, waited = Launchers(), [], []
    adder = threading.Thread(target=lambda: late.append(launchers.add(machine.launcher)))

    class Watched(weakref.WeakSet):  # type: ignore[type-arg]
        def __iter__(self) -> Iterator[object]:
            adder.start()
            adder.join(0.1)
            waited.append(adder.is_alive())
            return super().__iter__()

    launchers._living = Watched()
    launchers.forget()
    adder.join()
    assert (waited, len(late), len(launchers._living)) == ([True], 1, 1)
