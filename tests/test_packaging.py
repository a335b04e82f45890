"""What ships: a wheel, an sdist, an install elsewhere and an uninstalled checkout hold the same, and only flashgen."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).resolve().parent.parent
LINKED = ("generator", "templates", "configs")
USES_IT = """
import flashgen, flashgen.generator as generator
from pathlib import Path
entries = [entry for path in generator.shipped_configs() for entry in generator.load_config(path)]
from flashgen.generator.paths import INCLUDE
for entry, header in ((entries[0], "flashgen/fa3/backward/kernel.cuh"), (entries[-1], "flashgen/fa3/forward.cuh")):
    text = generator.render(generator.plan_entry(entry), entry.origin)
    assert entry.spec.name in text and f"#include <{header}>" in text
    assert (INCLUDE / header).is_file()
print(Path(flashgen.__file__).resolve().parent)
"""


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    """A command's output; its stderr is part of the failure."""
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    words = [str(word) for word in command]
    done = subprocess.run(
        words, cwd=cwd, env=kept | environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def tracked() -> list[str]:
    """Paths of the project's files; from git where there is one, so that strays of a working tree do not count."""
    if (ROOT / ".git").exists():
        return run("git", "ls-files", "-z", cwd=ROOT).rstrip("\0").split("\0")
    folders = ("flashgen", *LINKED, "build/README.md", "pyproject.toml", "README.md", "LICENSE")
    found = [path for folder in folders for path in [ROOT / folder, *(ROOT / folder).rglob("*")]]
    links = [ROOT / "flashgen" / name for name in LINKED]
    files = [path for path in [*found, *links] if path.is_symlink() or path.is_file()]
    return [path.relative_to(ROOT).as_posix() for path in files if "__pycache__" not in path.parts]


def expected() -> set[str]:
    """What a wheel must hold, by the place it has there."""
    sources = set()
    for name in tracked():
        parts = PurePosixPath(name).parts
        if parts[0] in LINKED:
            sources.add(f"flashgen/{name}")
        elif parts[0] == "flashgen" and not (ROOT / name).is_symlink():
            sources.add(name)
    return sources


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tracked files, with what an earlier build may have left beside them."""
    copy = tmp_path_factory.mktemp("checkout") / "flashgen"
    for name in tracked():
        source, target = ROOT / name, copy / name
        if source.is_symlink() or source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)
    for stray in ("build/lib/flashgen/stale.py", "build/attention_fwd_x/kernel.cu", "build/manifest.json"):
        (copy / stray).parent.mkdir(parents=True, exist_ok=True)
        (copy / stray).write_text("stale\n")
    return copy


def build_wheel(source: Path, target: Path) -> Path:
    """The wheel of a source tree, made with the setuptools of this environment and no network."""
    options = ("--no-build-isolation", "--no-deps", "--no-index", "--quiet")
    run(sys.executable, "-m", "pip", "wheel", *options, "--wheel-dir", target, source, cwd=target)
    (wheel,) = target.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(checkout, tmp_path_factory.mktemp("wheel"))


def shipped(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name and not name.endswith("/")}


def test_wheel_holds_exactly_the_tracked_files(wheel: Path) -> None:
    assert shipped(wheel) == expected()


def test_wheel_puts_only_flashgen_at_the_top(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        top = {PurePosixPath(name).parts[0] for name in archive.namelist()}
        metadata = archive.read(next(name for name in archive.namelist() if name.endswith("METADATA"))).decode()
    version = wheel.name.split("-")[1]
    assert top == {"flashgen", f"flashgen-{version}.dist-info"}
    assert wheel.name.endswith("-py3-none-any.whl")
    assert "License-Expression: Apache-2.0" in metadata


def test_sdist_builds_the_same_wheel(checkout: Path, wheel: Path, tmp_path: Path) -> None:
    backend = "import setuptools.build_meta as b, sys; print(b.build_sdist(sys.argv[1]))"
    run(sys.executable, "-c", backend, tmp_path, cwd=checkout)
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path / "unpacked", filter="data")
    (source,) = (tmp_path / "unpacked").iterdir()
    assert not (source / "build").exists(), "the sdist must not carry built kernels"
    again = tmp_path / "again"
    again.mkdir()
    assert shipped(build_wheel(source, again)) == shipped(wheel)


def test_installed_elsewhere_it_works_from_any_folder(wheel: Path, tmp_path: Path) -> None:
    target = tmp_path / "site"
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index")
    run(*pip, "--target", target, wheel, cwd=tmp_path)
    assert {path.name for path in target.iterdir() if not path.name.endswith(".dist-info")} == {"flashgen", "bin"}
    used = run(sys.executable, "-c", USES_IT, cwd=Path("/"), PYTHONPATH=str(target))
    assert used.strip() == str((target / "flashgen").resolve())
    version = run(sys.executable, "-m", "flashgen", "--version", cwd=Path("/"), PYTHONPATH=str(target))
    assert wheel.name.split("-")[1] in version


def test_an_uninstalled_checkout_works(checkout: Path) -> None:
    used = run(sys.executable, "-c", USES_IT, cwd=checkout)
    assert used.strip() == str((checkout / "flashgen").resolve())
