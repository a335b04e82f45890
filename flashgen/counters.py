"""Tile counters: two int32 in device memory that a dynamically scheduled kernel finds zero and leaves zero.

Launches on one stream follow each other, so they may share a counter. A captured graph may run beside anything, so
a launch under capture gets a counter of its own, zeroed by the graph each time it runs.
"""

from __future__ import annotations

import threading

import torch
from torch import Tensor

PER_THREAD_STREAM = 2  # the handle that means another stream in every thread

_slots: dict[tuple[int, int, int], Tensor] = {}
_lock = threading.Lock()


def new_counter(device: int) -> Tensor:
    """A zeroed counter; the zeroing is work on the current stream."""
    return torch.zeros(2, dtype=torch.int32, device=torch.device("cuda", device))


def counter_address(device: int, stream: int) -> int:
    """Address of the counter that launches on this stream share. The stream must be the current one."""
    key = (device, stream, threading.get_ident() if stream == PER_THREAD_STREAM else 0)
    with _lock:
        if key not in _slots:
            _slots[key] = new_counter(device)
        return _slots[key].data_ptr()
