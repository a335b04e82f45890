"""What the doctor reports, as data."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Status(StrEnum):
    """What a finding means: fine, merely told, worth a change, or in the way of compiling."""

    ok = "ok"
    info = "info"
    warning = "warning"
    error = "error"


@dataclass(frozen=True)
class Finding:
    """One line of the report. ``fix`` is what to do about it."""

    name: str
    status: Status
    value: str
    fix: str = ""


@dataclass(frozen=True)
class Report:
    """Every finding, in the order to read them in."""

    findings: tuple[Finding, ...]

    @property
    def can_compile(self) -> bool:
        """Whether kernels can be built here. A GPU is not needed for that."""
        return all(finding.status is not Status.error for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """As JSON takes it."""
        return {"can_compile": self.can_compile, "findings": [asdict(finding) for finding in self.findings]}
