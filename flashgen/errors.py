"""Every error flashgen raises on purpose. All derive from ``FlashgenError``; each message says what to do next."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flashgen.generator.errors import ConfigError, FlashgenError, NotAvailableError, PlanError

__all__ = [
    "ArgumentError",
    "ArtifactError",
    "CompileError",
    "ConfigError",
    "DeviceError",
    "FlashgenError",
    "LaunchError",
    "NoCompileError",
    "NotAvailableError",
    "NotShippableError",
    "PlanError",
    "ToolchainError",
]


class CompileError(FlashgenError, RuntimeError):
    """The compiler refused a source. ``log`` is all it said; ``source_path`` is the source it refused."""

    def __init__(self, message: str, log: str = "", source_path: Path | None = None) -> None:
        super().__init__(message)
        self.log = log
        self.source_path = source_path

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.message, self.log, self.source_path)


class NotShippableError(CompileError):
    """It compiled, but ptxas spilled, used the stack or serialised WGMMA: right results, ruinously slow."""


class ToolchainError(FlashgenError, RuntimeError):
    """NVRTC or a set of headers is missing, or two of them do not go together."""


class NoCompileError(FlashgenError, RuntimeError):
    """A kernel is neither loaded nor cached, and FLASHGEN_NO_COMPILE forbids compiling it."""


class ArtifactError(FlashgenError, ValueError):
    """A folder of built kernels cannot be trusted: tampered, incomplete or of an unknown schema."""


class ArgumentError(FlashgenError, ValueError):
    """A call's argument is wrong; raised before anything is launched."""


class DeviceError(FlashgenError, RuntimeError):
    """No GPU, the wrong GPU, or a driver too old."""


class LaunchError(FlashgenError, RuntimeError):
    """The driver refused to load or launch a kernel."""
