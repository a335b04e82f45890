"""The three kernels of a backward on a device, their workspace, and one packed launch of all three."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from flashgen.backward_geometry import BackwardGeometry, backward_geometry
from flashgen.driver import LaunchConfig, driver
from flashgen.generator.backward_plan import SIDE_THREADS, BackwardPlan
from flashgen.launch import DeviceCall, Launch, Layout
from flashgen.loaded import LoadedKernel
from flashgen.params import backward_params, set_numbers
from flashgen.tensormap import ALIGNMENT, TensorMap, accepted, describe

DESCRIBED = ("dout", "q", "k", "v")  # what the copy engine reads: one descriptor each
STRIDED = ("out", "dout", "dq", "dk", "dv")  # what threads read and write by address
BORROWED = ("dq_accum", "lse_log2", "dpsum", "dq_state", "next_tile")  # parts of the workspace


class Addresses(NamedTuple):
    """Where everything of a launch lies. ``dlse`` is 0 when there is no gradient of LSE."""

    dout: int
    q: int
    k: int
    v: int
    out: int
    lse: int
    dlse: int
    dq: int
    dk: int
    dv: int
    workspace: int


@dataclass(frozen=True, eq=False)
class BackwardCall(DeviceCall[BackwardPlan]):
    """One backward on one device with one set of shapes, strides and scale: all of a call but its addresses."""

    geometry: BackwardGeometry
    maps: tuple[TensorMap, TensorMap, TensorMap, TensorMap]  # as DESCRIBED
    strided: tuple[Layout, Layout, Layout, Layout, Layout]  # as STRIDED
    workspace: dict[str, int] = field(init=False)  # where its parts begin, in bytes
    workspace_bytes: int = field(init=False)
    template: ctypes.Structure = field(init=False, repr=False)

    def __post_init__(self) -> None:
        plan, sizes = self.kernel.plan, (self.geometry.batch, self.geometry.heads_q, self.geometry.seqlen_q)
        object.__setattr__(self, "workspace", {row.name: row.offset for row in plan.workspace(*sizes)})
        object.__setattr__(self, "workspace_bytes", plan.workspace_bytes(*sizes))
        params = backward_params()()
        set_numbers(params, self.geometry)
        for name, layout in zip(STRIDED, self.strided, strict=True):
            for which, stride in zip(("batch", "row", "head"), layout.strides, strict=False):
                setattr(params, f"{name}_{which}_stride", stride)
        object.__setattr__(self, "template", params)

    def pack(self, at: Addresses, stream: int) -> Launch:
        """Arguments and launch configurations for these addresses on that stream."""
        memory = _packet()()
        params, start = memory.params, ctypes.addressof(memory.params)
        ctypes.memmove(start, ctypes.addressof(self.template), ctypes.sizeof(params))
        for name, tensor_map in zip(DESCRIBED, self.maps, strict=True):
            self.describe_into(params, name, tensor_map, getattr(at, name))
        params.out_data, params.dout_data, params.lse, params.dlse = at.out, at.dout, at.lse, at.dlse or None
        params.dq, params.dk, params.dv = at.dq, at.dk, at.dv
        for name in BORROWED:
            offset = self.workspace.get(name)
            setattr(params, name, None if offset is None else at.workspace + offset)
        memory.arguments[0] = start
        plan, geometry = self.kernel.plan, self.geometry
        shapes = (
            (geometry.row_blocks, SIDE_THREADS, 0),
            (geometry.grid, plan.threads, plan.smem_bytes),
            (geometry.row_blocks, SIDE_THREADS, 0),
        )
        runs = []
        for config, function, (grid, threads, smem) in zip(
            memory.configs, self.kernel.functions(self.device), shapes, strict=True
        ):
            config.set(grid, threads, smem, stream)
            address = ctypes.addressof(config), function, ctypes.addressof(memory.arguments), None
            runs.append(partial(driver().cuLaunchKernelEx, *address))
        return Launch(memory, partial(_in_order, runs))


def _in_order(runs: Sequence[Callable[[], int]]) -> int:
    for run in runs:
        if status := run():
            return status
    return 0


def make_backward_call(
    kernel: LoadedKernel[BackwardPlan], device: int, processors: int, layouts: Mapping[str, Layout], scale: float
) -> BackwardCall:
    """All of a call but its addresses, for legal layouts of dout, q, k, v, out, dq, dk and dv, none empty."""
    plan = kernel.plan
    boxes = {
        "dout": (plan.chunk_v, plan.block_m), "q": (plan.chunk_qk, plan.block_m), "k": (plan.chunk_qk, plan.block_n),
        "v": (plan.chunk_v, plan.block_n),
    }  # fmt: skip
    dout, q, k, v = (describe(*layouts[name], str(plan.spec.dtype), boxes[name]) for name in DESCRIBED)
    a, b, c, d, e = (layouts[name] for name in STRIDED)
    geometry = backward_geometry(plan, layouts["q"].shape, layouts["k"].shape, scale, processors)
    return BackwardCall(kernel, device, geometry, (dout, q, k, v), (a, b, c, d, e))


def refused_maps(call: BackwardCall, addresses: Mapping[str, int]) -> tuple[str, ...]:
    """Which of dout, q, k and v the driver cannot describe: only stride 0 is in question, so only that is asked."""
    asked = [(name, each) for name, each in zip(DESCRIBED, call.maps, strict=True) if 0 in each.strides]
    return tuple(name for name, each in asked if not accepted(each, addresses[name] & -ALIGNMENT, call.device))


_PACKETS: list[type[ctypes.Structure]] = []


def _packet() -> type[ctypes.Structure]:
    """Parameters, argument pointers and launch configurations in one block of memory."""
    if not _PACKETS:
        fields = (("params", backward_params()), ("configs", LaunchConfig * 3), ("arguments", ctypes.c_void_p * 1))
        _PACKETS.append(type("BackwardPacket", (ctypes.Structure,), {"_fields_": fields}))
    return _PACKETS[0]
