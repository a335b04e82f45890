"""What a search has measured, kept in a file of JSON lines so that an interrupted one goes on where it was.

A line is one fact: what it is (``time``, ``verdict`` or ``failure``), its key and its value. Lines are appended whole,
by one write each; one that was cut short by a crash, or that another version wrote, counts as never written.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flashgen import env
from flashgen.errors import ArtifactError
from flashgen.generator import AnyPlan

FILE = "tune.jsonl"


@dataclass(frozen=True)
class Measurement:
    """One plan on one shape, and what ran in turn with it: medians in milliseconds."""

    milliseconds: float
    spread: float  # between the quartiles
    incumbent: float  # the incumbent's milliseconds in the same run
    cudnn: float | None  # cuDNN's; None where it does not run

    @property
    def over_incumbent(self) -> float:
        """Speed as a multiple of the incumbent's in the same run."""
        return self.incumbent / self.milliseconds

    @property
    def over_cudnn(self) -> float | None:
        """Speed as a multiple of cuDNN's in the same run."""
        return None if self.cudnn is None else self.cudnn / self.milliseconds


def default_state() -> Path | None:
    """The state file beside the compiled kernels; None when there is no folder for them."""
    folder = env.cache_dir()
    return None if folder is None else folder / FILE


def time_key(plan: AnyPlan, shape: str, sha256: str, gpu: str, incumbent: str, repetitions: int) -> dict[str, Any]:
    """What a measurement depends on; ``incumbent`` is the sha256 of what it was compared with."""
    return plan_key(plan, sha256, gpu) | {"shape": shape, "incumbent": incumbent, "repetitions": repetitions}


def plan_key(plan: AnyPlan, sha256: str, gpu: str) -> dict[str, Any]:
    """One kernel's machine code as it is launched, on a kind of GPU."""
    return {"kernel": plan.name, "plan": plan.request.explicit, "sha256": sha256, "gpu": gpu}


class TuneState:
    """The facts of a file, and of this process. Without a file (None) they live as long as the process."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._facts: dict[str, Any] = {}
        if path is not None:
            self._read(path)

    def time(self, key: Mapping[str, Any]) -> Measurement | None:
        """A measurement, when it was made."""
        found = self._facts.get(_text("time", key))
        with contextlib.suppress(TypeError):
            return None if found is None else Measurement(**found)
        return None

    def add_time(self, key: Mapping[str, Any], value: Measurement) -> None:
        """Keep a measurement."""
        self._add("time", key, asdict(value))

    def verdict(self, key: Mapping[str, Any]) -> str | None:
        """What was wrong with a kernel's results ("" = nothing), or None when nobody looked."""
        found = self._facts.get(_text("verdict", key))
        return found if isinstance(found, str) else None

    def add_verdict(self, key: Mapping[str, Any], reason: str) -> None:
        """Keep what was wrong with a kernel's results."""
        self._add("verdict", key, reason)

    def failure(self, key: Mapping[str, Any]) -> str | None:
        """Why a kernel does not run, or None as far as anybody knows."""
        found = self._facts.get(_text("failure", key))
        return found if isinstance(found, str) else None

    def add_failure(self, key: Mapping[str, Any], reason: str) -> None:
        """Keep that a kernel does not run, so that it is not tried again."""
        self._add("failure", key, reason)

    def _add(self, what: str, key: Mapping[str, Any], value: object) -> None:
        self._facts[_text(what, key)] = value
        if self.path is None:
            return
        line = json.dumps({"what": what, "key": key, "value": value}).encode() + b"\n"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.path, os.O_CREAT | os.O_RDWR | os.O_APPEND, 0o644)
            try:
                size = os.fstat(descriptor).st_size
                # What a crash cut short must not take this line with it.
                broken = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
                os.write(descriptor, (b"\n" if broken else b"") + line)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise ArtifactError(
                f"cannot write what was measured to {self.path} ({error.strerror or error}): name another --state FILE"
            ) from error

    def _read(self, path: Path) -> None:
        try:
            lines = path.read_bytes().splitlines()
        except FileNotFoundError:
            return
        except OSError as error:
            raise ArtifactError(f"cannot read {path} ({error.strerror or error}): name another --state FILE") from error
        for line in lines:
            with contextlib.suppress(ValueError, KeyError, TypeError):
                fact = json.loads(line)
                self._facts[_text(fact["what"], fact["key"])] = fact["value"]


def _text(what: str, key: Mapping[str, Any]) -> str:
    return f"{what} {json.dumps(key, sort_keys=True)}"
