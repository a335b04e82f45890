"""flashgen: fused attention kernels, generated for the problem at hand and called from PyTorch.

Importing it imports neither torch nor CUDA, reads no environment and writes nothing: names are imported on use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "attention": "flashgen.ops",
    "bind": "flashgen.bound",
    "BoundAttention": "flashgen.bound",
    "get_kernel": "flashgen.loading",
    "load": "flashgen.loading",
    "unload": "flashgen.loading",
    "Kernel": "flashgen.callable_kernel",
    "KernelLibrary": "flashgen.loading",
    "KernelPlan": "flashgen.generator",
    "KernelSpec": "flashgen.generator",
    "PlanRequest": "flashgen.generator",
    "ArgumentError": "flashgen.errors",
    "ArtifactError": "flashgen.errors",
    "CompileError": "flashgen.errors",
    "ConfigError": "flashgen.errors",
    "DeviceError": "flashgen.errors",
    "FlashgenError": "flashgen.errors",
    "LaunchError": "flashgen.errors",
    "NoCompileError": "flashgen.errors",
    "NotAvailableError": "flashgen.errors",
    "PlanError": "flashgen.errors",
    "ToolchainError": "flashgen.errors",
}

__all__ = [
    "ArgumentError",
    "ArtifactError",
    "BoundAttention",
    "CompileError",
    "ConfigError",
    "DeviceError",
    "FlashgenError",
    "Kernel",
    "KernelLibrary",
    "KernelPlan",
    "KernelSpec",
    "LaunchError",
    "NoCompileError",
    "NotAvailableError",
    "PlanError",
    "PlanRequest",
    "ToolchainError",
    "__version__",
    "attention",
    "bind",
    "get_kernel",
    "load",
    "unload",
]

if TYPE_CHECKING:
    from flashgen.bound import BoundAttention, bind
    from flashgen.callable_kernel import Kernel
    from flashgen.errors import (
        ArgumentError,
        ArtifactError,
        CompileError,
        ConfigError,
        DeviceError,
        FlashgenError,
        LaunchError,
        NoCompileError,
        NotAvailableError,
        PlanError,
        ToolchainError,
    )
    from flashgen.generator import KernelPlan, KernelSpec, PlanRequest
    from flashgen.loading import KernelLibrary, get_kernel, load, unload
    from flashgen.ops import attention


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'flashgen' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
