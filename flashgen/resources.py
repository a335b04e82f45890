"""What ptxas says a kernel uses, read from the compiler's log, and why a kernel must not be shipped."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, fields
from typing import Any

_REGISTERS = re.compile(r"Used (\d+) registers")
_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_SHARED = re.compile(r"(\d+) bytes smem")
# C7500 to C7599 are ptxas's notes on WGMMA: products serialised, waits or registers injected. They come with success.
_WGMMA = re.compile(r"\((C75\d\d)\)\s*([^\n\0]*)")


@dataclass(frozen=True)
class Resources:
    """Registers are per thread at launch (before setmaxnreg); bytes of stack and spills are per thread."""

    registers: int
    spill_stores: int
    spill_loads: int
    stack_bytes: int
    static_smem: int
    wgmma_warnings: tuple[str, ...] = ()

    @property
    def complaints(self) -> tuple[str, ...]:
        """Each reason why the kernel must not be shipped; empty for a sound one."""
        found = []
        if self.spill_stores or self.spill_loads:
            found.append(
                f"spills {self.spill_stores} bytes to local memory and loads {self.spill_loads} back per thread"
            )
        if self.stack_bytes:
            found.append(f"uses a stack frame of {self.stack_bytes} bytes per thread in local memory")
        return (*found, *self.wgmma_warnings)

    @property
    def shippable(self) -> bool:
        """Whether nothing is wrong with it."""
        return not self.complaints

    def to_dict(self) -> dict[str, Any]:
        """As JSON takes it."""
        return asdict(self) | {"wgmma_warnings": list(self.wgmma_warnings)}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Resources:
        """The inverse of ``to_dict``; KeyError or TypeError when the data is not that."""
        values = {f.name: data[f.name] for f in fields(cls)}
        numbers = {name: value for name, value in values.items() if name != "wgmma_warnings"}
        if not all(type(value) is int for value in numbers.values()):
            raise TypeError(f"resources must be integers, got {numbers}")
        return cls(**numbers, wgmma_warnings=tuple(map(str, values["wgmma_warnings"])))


def parse_log(log: str) -> Resources:
    """Resources of a source's one kernel from the log of ``ptxas -v``.

    Functions that were not inlined have frames of their own, so frames add up; registers are the largest.
    """
    registers = [int(n) for n in _REGISTERS.findall(log)]
    frames = [tuple(map(int, found)) for found in _FRAME.findall(log)]
    if not registers or not frames:
        # Silence must not read as "no spills".
        raise ValueError("the compiler's log holds no ptxas report (registers, stack frame)")
    stack, stores, loads = (sum(column) for column in zip(*frames, strict=True))
    warnings = dict.fromkeys(f"{code}: {' '.join(text.split())}" for code, text in _WGMMA.findall(log))
    return Resources(
        registers=max(registers),
        spill_stores=stores,
        spill_loads=loads,
        stack_bytes=stack,
        static_smem=sum(map(int, _SHARED.findall(log))),
        wgmma_warnings=tuple(warnings),
    )
