"""A folder of built kernels: ``<name>/{kernel.cu, kernel.cubin, spec.yaml, report.json}`` and one ``manifest.json``.

The manifest is the truth: it carries what a launch needs (spec, plan) and the sha256 of each cubin, and its own sha256.
Every file is replaced whole (a temporary file, then a rename), and writers take turns by a lock, so a reader sees the
folder as some build left it. While a rebuild has replaced a cubin and not yet the manifest, the cubin that the manifest
still means lies beside it as ``kernel.cubin.previous``: a build killed at any point leaves every earlier kernel usable.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flashgen.errors import ArtifactError, FlashgenError
from flashgen.files import locked, write_atomic
from flashgen.generator import AnyPlan, BackwardPlan, Epilogue, KernelPlan, KernelSpec, Op, Rescale, Scheduler
from flashgen.kernel import BuiltKernel, write_files
from flashgen.params import backward_digest, forward_digest
from flashgen.resources import Resources

SCHEMA = 1
MANIFEST = "manifest.json"
PREVIOUS = "kernel.cubin.previous"
READ_TRIES = 3  # a build that commits between our two reads makes the first try miss


@dataclass(frozen=True)
class Entry:
    """One kernel of a manifest. ``folder`` is the kernel's own, below the manifest's."""

    name: str
    folder: Path
    sha256: str
    plan: AnyPlan
    resources: Resources
    toolchain: dict[str, str]
    origin: str
    shippable: bool

    def read_cubin(self) -> bytes:
        """The cubin's bytes, checked against the manifest; ArtifactError when they are not the ones it names."""
        for path in (self.folder / "kernel.cubin", self.folder / PREVIOUS):
            with contextlib.suppress(OSError):
                cubin = path.read_bytes()
                if hashlib.sha256(cubin).hexdigest() == self.sha256:
                    return cubin
        path = self.folder / "kernel.cubin"
        state = "is not the one the manifest names (its sha256 differs)" if path.exists() else "is missing"
        raise ArtifactError(f"{path} {state}: build it again with `flashgen build -o {self.folder.parent}`")


@dataclass(frozen=True)
class Manifest:
    """What a folder holds; ``kernels`` maps canonical names to entries."""

    folder: Path
    kernels: dict[str, Entry]


def write_kernel(folder: Path, built: BuiltKernel) -> None:
    """Write one kernel's folder under ``folder`` and enter it in the manifest, beside what is there already.

    Raises ArtifactError when the manifest that is there cannot be trusted, OSError when the folder cannot be written.
    """
    record = _record(built)
    own = folder / built.name
    own.mkdir(parents=True, exist_ok=True)
    with locked(folder / ".lock"):
        kernels = _read_records(folder) if (folder / MANIFEST).exists() else {}
        cubin, previous = own / "kernel.cubin", own / PREVIOUS
        if built.name in kernels and kernels[built.name]["sha256"] != built.sha256 and cubin.exists():
            old = cubin.read_bytes()
            if hashlib.sha256(old).hexdigest() == kernels[built.name]["sha256"]:
                write_atomic(previous, old)
        write_files(built, own)
        write_manifest(folder, kernels | {built.name: record})
        previous.unlink(missing_ok=True)


def write_manifest(folder: Path, kernels: dict[str, dict[str, Any]]) -> None:
    """Write the manifest of these records, whole."""
    body = {"schema": SCHEMA, "kernels": dict(sorted(kernels.items()))}
    write_atomic(folder / MANIFEST, _json({"sha256": _digest(body), **body}))


def read_manifest(folder: str | os.PathLike[str], *, check: bool = True) -> Manifest:
    """The manifest of a folder; with ``check`` every cubin is read and compared with its sha256.

    Raises ArtifactError when anything is not as a build left it.
    """
    place = Path(folder)
    for attempt in range(READ_TRIES):
        manifest = Manifest(place, {name: _entry(place, name, record) for name, record in _read_records(place).items()})
        try:
            for entry in manifest.kernels.values() if check else ():
                entry.read_cubin()
            break
        except ArtifactError:
            if attempt == READ_TRIES - 1:
                raise
    return manifest


def plan_record(plan: AnyPlan) -> dict[str, Any]:
    """A plan as JSON takes it."""
    return asdict(plan)


def plan_from(record: dict[str, Any]) -> AnyPlan:
    """The plan of ``plan_record``; KeyError, TypeError or ValueError when the record is not one."""
    values = dict(record)
    spec = dict(values.pop("spec"))
    spec["features"] = tuple(spec["features"])
    made = BackwardPlan if spec["op"] == Op.attention_bwd else KernelPlan
    kinds = {"scheduler": Scheduler, "rescale": Rescale, "epilogue": Epilogue}
    words = {name: kind(values[name]) for name, kind in kinds.items() if name in values}
    return made(spec=KernelSpec(**spec), **(values | words))


def _digest_of(plan: AnyPlan) -> str:
    return backward_digest() if isinstance(plan, BackwardPlan) else forward_digest()


def _record(built: BuiltKernel) -> dict[str, Any]:
    return {
        "sha256": built.sha256,
        "origin": built.origin,
        "shippable": built.resources.shippable,
        "resources": built.resources.to_dict(),
        "toolchain": built.toolchain.facts(),
        "params": _digest_of(built.plan),
        "plan": plan_record(built.plan),
    }


def _entry(folder: Path, name: str, record: dict[str, Any]) -> Entry:
    try:
        plan = plan_from(record["plan"])
        if plan.name != name:
            raise ValueError(f"its plan is of {plan.name}")
        if record["params"] != _digest_of(plan):
            raise ValueError("it takes the arguments of another flashgen")
        resources = Resources.from_dict(record["resources"])
        return Entry(
            name=name,
            folder=folder / name,
            sha256=record["sha256"],
            plan=plan,
            resources=resources,
            toolchain=record["toolchain"],
            origin=record["origin"],
            shippable=resources.shippable,
        )
    except (KeyError, TypeError, ValueError, AttributeError, FlashgenError) as error:
        raise ArtifactError(
            f"{folder / MANIFEST}: the record of {name!r} is not usable ({error!r}): {_remedy(folder)}"
        ) from error


def _read_records(folder: Path) -> dict[str, dict[str, Any]]:
    path = folder / MANIFEST
    remedy = _remedy(folder)
    try:
        data = json.loads(path.read_text())
    except FileNotFoundError:
        raise ArtifactError(
            f"{path} not found: build kernels into the folder with `flashgen build -o {folder}`"
        ) from None
    except (OSError, ValueError) as error:
        raise ArtifactError(f"{path} cannot be read ({error}): {remedy}") from error
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        got = data.get("schema") if isinstance(data, dict) else type(data).__name__
        raise ArtifactError(f"{path}: schema {got!r} is not known to this flashgen (it reads {SCHEMA}): {remedy}")
    if data.pop("sha256", None) != _digest(data) or not isinstance(data.get("kernels"), dict):
        raise ArtifactError(f"{path} was changed after it was written (its sha256 differs): {remedy}")
    return data["kernels"]


def _remedy(folder: Path) -> str:
    return f"delete {folder / MANIFEST} and build again with `flashgen build -o {folder}`"


def _json(data: dict[str, Any]) -> bytes:
    return (json.dumps(data, indent=1) + "\n").encode()


def _digest(data: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()
