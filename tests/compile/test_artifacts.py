"""Folders of built kernels: what a build leaves is read back as it was; anything else is refused by hash."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from flashgen import artifacts, files
from flashgen.artifacts import read_manifest, write_kernel
from flashgen.errors import ArtifactError
from flashgen.generator import load_config, plan_entry
from flashgen.kernel import BuiltKernel

Made = Callable[..., BuiltKernel]


def digest_again(path: Path, change: Callable[[dict], None]) -> None:
    """Change a manifest as someone would who also knows how it is hashed."""
    data = json.loads(path.read_text())
    change(data)
    data.pop("sha256")
    path.write_text(json.dumps({"sha256": artifacts._digest(data), **data}))


def test_read_back(tmp_path: Path, made: Made) -> None:
    kernels = [made(64, b"one"), made(128, b"two")]
    for kernel in kernels:
        write_kernel(tmp_path, kernel)
    found = read_manifest(tmp_path).kernels
    assert list(found) == sorted(kernel.name for kernel in kernels)
    for kernel in kernels:
        entry = found[kernel.name]
        assert (entry.plan, entry.sha256, entry.resources) == (kernel.plan, kernel.sha256, kernel.resources)
        assert entry.plan.smem_bytes == kernel.plan.smem_bytes
        assert entry.read_cubin() == kernel.cubin
        folder = tmp_path / kernel.name
        assert sorted(path.name for path in folder.iterdir()) == [
            "kernel.cu",
            "kernel.cubin",
            "report.json",
            "spec.yaml",
        ]
        assert (folder / "kernel.cu").read_text() == kernel.source
        assert json.loads((folder / "report.json").read_text())["sha256"] == kernel.sha256
        (again,) = load_config(folder / "spec.yaml")
        assert plan_entry(again) == kernel.plan


def test_complaints_are_told(tmp_path: Path, made: Made) -> None:
    write_kernel(tmp_path, made(64, spills=1228))
    (entry,) = read_manifest(tmp_path).kernels.values()
    report = json.loads((entry.folder / "report.json").read_text())
    assert (entry.shippable, report["shippable"]) == (False, False)
    assert "1228 bytes" in report["complaints"][0]


@pytest.mark.parametrize("content", [b"machine codf", b"machine code ", b"", None])
def test_tampered_cubin_is_refused(tmp_path: Path, made: Made, content: bytes | None) -> None:
    kernel = made(64, b"machine code")
    write_kernel(tmp_path, kernel)
    entry = read_manifest(tmp_path).kernels[kernel.name]
    cubin = entry.folder / "kernel.cubin"
    cubin.unlink() if content is None else cubin.write_bytes(content)
    for read in (lambda: read_manifest(tmp_path), entry.read_cubin):
        with pytest.raises(ArtifactError, match="flashgen build") as error:
            read()
        assert str(cubin) in str(error.value)
    write_kernel(tmp_path, kernel)
    assert read_manifest(tmp_path).kernels[kernel.name].read_cubin() == b"machine code"


def test_tampered_manifest_is_refused(tmp_path: Path, made: Made) -> None:
    write_kernel(tmp_path, made(64, b"machine code"))
    path = tmp_path / "manifest.json"
    good = path.read_text()
    block_n = '"block_n": '
    for bad in (good.replace(block_n, block_n + "1", 1), good[: len(good) // 2], "", "[]", "null", '{"schema": 1}'):
        assert bad != good
        path.write_text(bad)
        with pytest.raises(ArtifactError, match=r"delete .*manifest.json and build again"):
            read_manifest(tmp_path)
        with pytest.raises(ArtifactError):
            write_kernel(tmp_path, made(128))
        assert path.read_text() == bad, "a build must not throw away what it does not understand"


def test_unknown_schema_is_refused(tmp_path: Path, made: Made) -> None:
    write_kernel(tmp_path, made(64))
    digest_again(tmp_path / "manifest.json", lambda data: data.update(schema=99))
    with pytest.raises(ArtifactError, match="schema 99 is not known"):
        read_manifest(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        lambda record: record.pop("plan"),
        lambda record: record["plan"].update(block_q=1),
        lambda record: record["plan"]["spec"].update(head_dim_qk=63),
        lambda record: record["plan"]["spec"].update(dtype="fp16"),
        lambda record: record["plan"].update(scheduler="sideways"),
        lambda record: record.update(resources={"registers": "many"}),
        lambda record: record.update(params="0" * 64),
    ],
)
def test_unusable_record_is_refused(tmp_path: Path, made: Made, change: Callable[[dict], None]) -> None:
    kernel = made(64)
    write_kernel(tmp_path, kernel)
    digest_again(tmp_path / "manifest.json", lambda data: change(data["kernels"][kernel.name]))
    with pytest.raises(ArtifactError, match=rf"{kernel.name}.*delete .*manifest.json and build again"):
        read_manifest(tmp_path)


def test_no_manifest(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(ArtifactError, match=r"not found.*flashgen build"):
            read_manifest(folder)


@pytest.mark.parametrize("survive", range(6))
def test_killed_rebuild_leaves_the_old_kernels(
    tmp_path: Path, made: Made, monkeypatch: pytest.MonkeyPatch, survive: int
) -> None:
    """A rebuild with other bytes dies at each of its renames in turn: the manifest reads, and means the old bytes."""
    old, other = made(64, b"old bytes"), made(128, b"other")
    write_kernel(tmp_path, old)
    write_kernel(tmp_path, other)
    real, left = os.replace, survive

    def dying(source: str, target: Path) -> None:
        nonlocal left
        if not left:
            raise KeyboardInterrupt
        left -= 1
        real(source, target)

    monkeypatch.setattr(files.os, "replace", dying)
    with pytest.raises(KeyboardInterrupt):
        write_kernel(tmp_path, made(64, b"new bytes"))
    monkeypatch.setattr(files.os, "replace", real)
    found = read_manifest(tmp_path).kernels
    assert found[old.name].read_cubin() == b"old bytes"
    assert found[other.name].read_cubin() == b"other"
    write_kernel(tmp_path, made(64, b"new bytes"))
    assert read_manifest(tmp_path).kernels[old.name].read_cubin() == b"new bytes"
    assert not list(tmp_path.rglob("*.previous"))


def test_half_written_folder_is_no_kernel(tmp_path: Path, made: Made) -> None:
    write_kernel(tmp_path, made(64))
    (tmp_path / made(128).name).mkdir()
    (tmp_path / made(128).name / "kernel.cu").write_text("half")
    assert list(read_manifest(tmp_path).kernels) == [made(64).name]


def test_reader_sees_a_commit_between_its_reads(tmp_path: Path, made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    write_kernel(tmp_path, made(64, b"old bytes"))
    real = artifacts._read_records
    builds = [made(64, b"new bytes")]

    def read_then_commit(folder: Path) -> dict:
        records = real(folder)
        if builds:
            write_kernel(tmp_path, builds.pop())
        return records

    monkeypatch.setattr(artifacts, "_read_records", read_then_commit)
    (entry,) = read_manifest(tmp_path).kernels.values()
    assert entry.read_cubin() == b"new bytes"
