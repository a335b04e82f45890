"""``configs/verified.json``: for each shipped kernel, which machine code was verified, by what, where and how well."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from flashgen.errors import ArtifactError
from flashgen.files import write_atomic
from flashgen.generator.paths import CONFIGS

if TYPE_CHECKING:
    from flashgen.verify import Verification

RECEIPTS = CONFIGS / "verified.json"
SCHEMA = 1


@dataclass(frozen=True)
class Receipt:
    """One verified kernel. ``worst_error`` is the largest share of the allowed error that any case used."""

    sha256: str
    compiler: str
    gpu: str
    date: str
    cases: int
    worst_error: float


def receipt_of(verification: Verification) -> Receipt:
    """The receipt of a verification that passed; ValueError for one that did not."""
    if not verification.ok:
        raise ValueError(f"{verification.name} failed {len(verification.failures)} cases: it gets no receipt")
    code = verification.kernel.code
    return Receipt(
        sha256=code.sha256,
        compiler=f"nvrtc {code.toolchain['nvrtc_version']}",
        gpu=verification.device,
        date=datetime.now(UTC).date().isoformat(),
        cases=verification.cases,
        worst_error=round(verification.worst_error, 4),
    )


def read_receipts(path: Path = RECEIPTS) -> dict[str, Receipt]:
    """The receipts of a file by kernel name; none when there is no file, ArtifactError when it is not one of ours."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    try:
        data = json.loads(text)
        if data["schema"] != SCHEMA:
            raise ValueError(f"schema {data['schema']!r}, expected {SCHEMA}")
        names = {field.name for field in fields(Receipt)}
        kernels = data["kernels"]
        for name, values in kernels.items():
            if set(values) != names:
                raise ValueError(f"{name} has {sorted(values)}, expected {sorted(names)}")
        return {name: Receipt(**values) for name, values in kernels.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ArtifactError(f"{path} is no file of receipts ({error}): restore it, or run `flashgen verify`") from error


def merge(old: Mapping[str, Receipt], new: Mapping[str, Receipt]) -> dict[str, Receipt]:
    """Both, sorted by name; a new receipt replaces the old one of its kernel."""
    return dict(sorted({**old, **new}.items()))


def write_receipts(receipts: Mapping[str, Receipt], path: Path = RECEIPTS) -> None:
    """Write a file of receipts, whole, sorted by name."""
    kernels = {name: asdict(receipt) for name, receipt in sorted(receipts.items())}
    write_atomic(path, (json.dumps({"schema": SCHEMA, "kernels": kernels}, indent=1) + "\n").encode())


def record(verifications: Iterable[Verification], path: Path = RECEIPTS) -> dict[str, Receipt]:
    """Add the receipts of those that passed to a file and take out those of kernels that failed."""
    done = list(verifications)
    kept = merge(read_receipts(path), {each.name: receipt_of(each) for each in done if each.ok})
    for each in done:
        if not each.ok:
            kept.pop(each.name, None)
    write_receipts(kept, path)
    return kept


def verified(name: str, sha256: str, receipts: Mapping[str, Receipt]) -> bool:
    """Whether this very machine code is the one that was verified under that name."""
    receipt = receipts.get(name)
    return receipt is not None and receipt.sha256 == sha256
