"""Tile counters: two int32 in device memory that a dynamically scheduled kernel finds zero and leaves zero.

Launches on one stream follow each other, so they may share a counter. A captured graph may run beside anything, so
a launch under capture gets a counter of its own, zeroed by the graph each time it runs.

Shared counters stay where they are until the process ends, since a remembered launch holds their address. So they do
not come from torch's allocator: whatever pool is active there may belong to a graph that counts what is left in it.
"""

from __future__ import annotations

import threading

import torch
from torch import Tensor

from flashgen.driver import driver

PER_THREAD_STREAM = 2  # the handle that means another stream in every thread
COUNTER_BYTES = 8
SLAB_COUNTERS = 512

_slots: dict[tuple[int, int, int], int] = {}  # (device, stream, thread) -> address
_unused: dict[int, range] = {}  # device -> addresses of its newest slab that no stream has
_lock = threading.Lock()


def new_counter(device: int) -> Tensor:
    """A zeroed counter; the zeroing is work on the current stream."""
    return torch.zeros(2, dtype=torch.int32, device=torch.device("cuda", device))


def counter_address(device: int, stream: int) -> int:
    """Address of the counter that launches on this stream share. The stream must not be under capture."""
    key = (device, stream, threading.get_ident() if stream == PER_THREAD_STREAM else 0)
    with _lock:  # held until it is zeroed in the stream's order: whoever is next launches after that
        if key not in _slots:
            address = _new_slot(device)
            driver().zero(address, COUNTER_BYTES, device, stream)
            _slots[key] = address
        return _slots[key]


def _new_slot(device: int) -> int:
    left = _unused.get(device)
    if not left:
        size = SLAB_COUNTERS * COUNTER_BYTES
        start = driver().allocate(size, device)
        left = range(start, start + size, COUNTER_BYTES)
    _unused[device] = left[1:]
    return left[0]
