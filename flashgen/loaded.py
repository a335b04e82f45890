"""A cubin on a device."""

from __future__ import annotations

import threading
from typing import Generic, TypeVar

from flashgen.driver import driver
from flashgen.generator import BackwardPlan, KernelPlan

Plan = TypeVar("Plan", KernelPlan, BackwardPlan)


class LoadedKernel(Generic[Plan]):
    """One plan's machine code, loaded on a device when it is first used there. Safe to use from several threads."""

    def __init__(self, plan: Plan, cubin: bytes) -> None:
        self.plan: Plan = plan
        self.cubin = cubin
        self._functions: dict[int, tuple[int, ...]] = {}
        self._lock = threading.Lock()

    def functions(self, device: int) -> tuple[int, ...]:
        """The CUfunctions of the plan's entry points on that device. Only the one of the plan's name takes memory."""
        found = self._functions.get(device)
        if found is None:
            with self._lock:
                found = self._functions.get(device)
                if found is None:
                    plan = self.plan
                    sizes = {name: plan.smem_bytes if name == plan.name else 0 for name in plan.entry_points}
                    found = self._functions[device] = driver().load(self.cubin, sizes, device)
        return found
