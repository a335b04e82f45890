"""Launchers remember calls, and with them kernels: all forget at once when other kernels are to be preferred."""

from __future__ import annotations

import threading
import weakref
from typing import Any


class Launchers:
    """All that live. Each keeps ``_calls`` and ``_launches`` and changes them under its ``_lock``.

    A call that was begun before ``forget`` must not be remembered after it: read ``generation`` before asking for its
    kernel, and store it, under ``_lock``, only where ``generation`` is still the same.
    """

    def __init__(self) -> None:
        self.generation = 0
        self._living: weakref.WeakSet[Any] = weakref.WeakSet()
        self._lock = threading.Lock()  # a set that grows cannot be gone through

    def add(self, launcher: Any) -> None:
        """Have a launcher forget with the others as long as it lives."""
        with self._lock:
            self._living.add(launcher)

    def forget(self) -> None:
        """Empty every launcher's memos."""
        with self._lock:
            self.generation += 1  # first: what is stored before a launcher is emptied goes, and nothing is after
            living = list(self._living)
        for launcher in living:
            with launcher._lock:
                launcher._calls.clear()
                launcher._launches.clear()
