"""Tile counters: two int32 in device memory that a dynamically scheduled kernel finds zero and leaves zero.

Launches on one stream follow each other, so they may share a counter. A captured graph may run beside anything, so
a launch under capture gets a counter of its own, zeroed by the graph each time it runs.

All counters stay where they are until the process ends, since a remembered launch or a graph holds their address, and
nobody says when a graph is gone. So they do not come from torch's allocator: a pool that is active there may belong to
a graph that counts what is left in it, and without one a block is given to others while a graph still writes to it.
"""

from __future__ import annotations

import threading

from flashgen.driver import driver

PER_THREAD_STREAM = 2  # the handle that means another stream in every thread
COUNTER_BYTES = 8
SLAB_COUNTERS = 512


class _Thread(threading.local):
    """Of each thread object: its number will not do, since another gets it while this one's work may still run."""

    def __init__(self) -> None:
        self.slots: dict[tuple[int, int], int] = {}  # as _slots, of PER_THREAD_STREAM


_slots: dict[tuple[int, int], int] = {}  # (device, stream) -> address
_thread = _Thread()
_unused: dict[int, range] = {}  # device -> addresses of its newest slab that no stream has
_lock = threading.Lock()


def captured_counter(device: int, stream: int) -> int:
    """Address of a new counter for one launch on a stream under capture, whose graph zeroes it from now on."""
    with _lock:
        address = _new_slot(device)
    driver().zero(address, COUNTER_BYTES, device, stream)
    return address


def counter_address(device: int, stream: int) -> int:
    """Address of the counter that launches on this stream share. The stream must not be under capture."""
    slots = _thread.slots if stream == PER_THREAD_STREAM else _slots
    with _lock:  # held until it is zeroed in the stream's order: whoever is next launches after that
        if (device, stream) not in slots:
            address = _new_slot(device)
            driver().zero(address, COUNTER_BYTES, device, stream)
            slots[device, stream] = address
        return slots[device, stream]


def _new_slot(device: int) -> int:
    left = _unused.get(device)
    if not left:
        size = SLAB_COUNTERS * COUNTER_BYTES
        start = driver().allocate(size, device)
        left = range(start, start + size, COUNTER_BYTES)
    _unused[device] = left[1:]
    return left[0]
