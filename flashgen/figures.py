"""Measured speed of kernels, each bound to the plan and the machine code that ran.

``configs/measured.json`` has those of the shipped kernels, made of the documents of ``flashgen bench --json``. Such
documents and the state of ``flashgen tune`` say the same of kernels on a machine of one's own.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from flashgen.bench_grid import Shape
from flashgen.errors import ArtifactError
from flashgen.files import write_atomic
from flashgen.generator import AnyPlan
from flashgen.generator.cost import MMA_FLOP_PER_CYCLE
from flashgen.generator.paths import CONFIGS

MEASURED = CONFIGS / "measured.json"
SCHEMA = 1
SXM_PEAK = 132 * MMA_FLOP_PER_CYCLE * 1.83e9 / 1e12  # SMs and the clock of NVIDIA's 989 dense TFLOP/s
PEAK_TFLOPS = {"NVIDIA H100 80GB HBM3": SXM_PEAK, "NVIDIA H200": SXM_PEAK}


@dataclass(frozen=True)
class Measured:
    """What one run measured of a kernel: ``shapes`` maps names of shapes to TFLOP/s of useful operations."""

    kernel: str
    plan: dict[str, Any]  # every choice, as ``plan.request.explicit`` has them
    sha256: str
    gpu: str
    compiler: str = ""  # "" where the record does not tell, as in a tuner's state
    date: str = ""
    product_tflops: float | None = None  # of a large bf16 matrix product in the same run
    shapes: dict[str, float] = field(default_factory=dict)

    @property
    def peak_tflops(self) -> float | None:
        """The tensor cores' dense peak in bf16 and fp16; None for a GPU whose peak is not known here."""
        return PEAK_TFLOPS.get(self.gpu)

    def is_of(self, plan: AnyPlan) -> bool:
        """Whether it says something of that plan: other choices under the same name are another kernel."""
        names = (plan.name, plan.spec.any_length.name)  # a search times plans before they have ranges of keys
        return self.kernel in names and self.plan == plan.request.explicit


def from_document(document: Mapping[str, Any]) -> list[Measured]:
    """What a document of ``flashgen bench --json`` says of kernels: its rows that name machine code.

    KeyError or TypeError when it is no such document.
    """
    found: dict[tuple[str, str], Measured] = {}
    product = document.get("matrix_product_tflops")
    for row in document["rows"]:
        if row.get("kernel") is None or row.get("sha256") is None:
            continue
        one = found.setdefault(
            (row["kernel"], row["sha256"]),
            Measured(
                row["kernel"], row["plan"], row["sha256"], document["gpu"], f"nvrtc {document['nvrtc']}",
                document["date"], None if product is None else round(product, 1),
            ),
        )  # fmt: skip
        one.shapes[row["shape"]] = round(row["tflops"], 1)
    return list(found.values())


def from_state(lines: Iterable[str | bytes]) -> list[Measured]:
    """What a tuner's state says of kernels: the latest time of each on each shape. Lines that are none are no news."""
    found: dict[tuple[str, str, str], Measured] = {}
    for line in lines:
        with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
            fact = json.loads(line)
            if fact["what"] != "time":
                continue
            key, shape = fact["key"], Shape.from_name(fact["key"]["shape"])
            tflops = round(shape.flop / fact["value"]["milliseconds"] / 1e9, 1)
            identity = (key["kernel"], key["sha256"], key["gpu"])
            made = Measured(key["kernel"], key["plan"], key["sha256"], key["gpu"])
            found.setdefault(identity, made).shapes[shape.name] = tflops
    return list(found.values())


def read_file(path: Path) -> list[Measured]:
    """What a file says: ``flashgen bench --json``'s, a tuner's state (``.jsonl``), or one like ``MEASURED``.

    ArtifactError when it cannot be read or is none of them.
    """
    try:
        if path.suffix == ".jsonl":
            return from_state(path.read_bytes().splitlines())
        document = json.loads(path.read_text(encoding="utf-8"))
        return from_document(document) if "rows" in document else list(_from_record(document))
    except OSError as error:
        raise ArtifactError(f"cannot read {path} ({error.strerror or error})") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ArtifactError(
            f"{path} holds no measured figures ({error!r}): expected what `flashgen bench --json` prints, or the state "
            "of `flashgen tune` (.jsonl)"
        ) from error


def shipped(path: Path = MEASURED) -> list[Measured]:
    """The figures that ship; none when there is no file."""
    return read_file(path) if path.exists() else []


def write_measured(measured: Iterable[Measured], path: Path = MEASURED) -> None:
    """Write a file like ``MEASURED``, whole, sorted by name; of one kernel measured twice the later record counts."""
    kernels = {each.kernel: {k: v for k, v in asdict(each).items() if k != "kernel"} for each in measured}
    document = {"schema": SCHEMA, "kernels": dict(sorted(kernels.items()))}
    write_atomic(path, (json.dumps(document, indent=1) + "\n").encode())


def _from_record(document: Mapping[str, Any]) -> Iterator[Measured]:
    if document["schema"] != SCHEMA:
        raise ValueError(f"schema {document['schema']!r}, expected {SCHEMA}")
    names = {each.name for each in fields(Measured)} - {"kernel"}
    for kernel, values in document["kernels"].items():
        if set(values) != names:
            raise ValueError(f"{kernel} has {sorted(values)}, expected {sorted(names)}")
        yield Measured(kernel, **values)


def of_plan(plan: AnyPlan, measured: Iterable[Measured]) -> list[Measured]:
    """Those of a plan, with the shapes alone whose number of keys the kernel is meant for."""
    found = []
    for each in measured:
        if each.is_of(plan):
            kept = {name: value for name, value in each.shapes.items() if _meant(plan, name)}
            found += [replace(each, shapes=kept)] if kept else []
    return found


def _meant(plan: AnyPlan, shape: str) -> bool:
    return plan.spec.meant_for(Shape.from_name(shape).seqlen_k)
