"""Many kernels at once, ahead of time: every config entry to cubins in a folder. No GPU."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from flashgen import env
from flashgen.artifacts import MANIFEST, read_manifest, write_kernel
from flashgen.errors import ArgumentError, ArtifactError, FlashgenError, NotShippableError
from flashgen.generator import ConfigEntry
from flashgen.kernel import BuiltKernel, build_kernel, cached_kernel
from flashgen.toolchain import find_toolchain
from flashgen.workers import Outcome, compiled

__all__ = ["BuildResult", "Outcome", "Progress", "build_all"]


@dataclass
class BuildResult:
    """What became of all of them, each list in the order in which they finished."""

    ok: list[BuiltKernel] = field(default_factory=list)
    failed: list[tuple[ConfigEntry, FlashgenError]] = field(default_factory=list)


Progress = Callable[[Outcome, int, int], None]  # (what finished, how many have, how many there are)


def build_all(
    entries: Iterable[ConfigEntry],
    out_dir: str | os.PathLike[str] | None,
    jobs: int | None = None,
    on_progress: Progress | None = None,
    *,
    strict: bool = True,
) -> BuildResult:
    """Build every entry, ``jobs`` at a time (None: one a core), into ``out_dir`` (None: the cache alone).

    A kernel that fails is listed in ``failed`` and the others go on; with ``strict``, so is one that ptxas spilled or
    whose WGMMA it serialised, although its files are written. Each kernel enters the manifest as it is done, so that an
    interrupted build (KeyboardInterrupt passes through) leaves what it had built. Raises ArgumentError
    for less than one job, and ToolchainError or ArtifactError, before anything is compiled, when nothing could be built
    or the folder's manifest cannot be trusted.
    """
    if jobs is not None and jobs < 1:
        raise ArgumentError(f"jobs: got {jobs}; expected a number from 1, or None for one a core")
    todo, result = list(entries), BuildResult()
    folder = _prepared(Path(out_dir)) if out_dir is not None else None
    if not env.no_compile():
        find_toolchain()

    def finish(outcome: Outcome) -> None:
        outcome = _kept(outcome, folder, strict)
        if outcome.error is not None:
            result.failed.append((outcome.entry, outcome.error))
        elif outcome.built is not None:
            result.ok.append(outcome.built)
        if on_progress is not None:
            on_progress(outcome, len(result.ok) + len(result.failed), len(todo))

    missing = []
    for entry in todo:
        outcome = _at_hand(entry)
        if outcome is None:
            missing.append(entry)
        else:
            finish(outcome)
    with contextlib.closing(compiled(missing, jobs or len(os.sched_getaffinity(0)))) as outcomes:
        for outcome in outcomes:
            finish(outcome)
    return result


def _prepared(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as probe:
            probe.callback((folder / ".writable").unlink, missing_ok=True)
            (folder / ".writable").write_bytes(b"")
    except OSError as error:
        raise ArtifactError(f"cannot write to {folder} ({error.strerror or error}): name another folder") from error
    if (folder / MANIFEST).exists():
        read_manifest(folder, check=False)
    return folder


def _at_hand(entry: ConfigEntry) -> Outcome | None:
    """What needs no compiler: cached kernels, plans that cannot be, and every miss where compiling is forbidden."""
    try:
        if env.no_compile():
            return Outcome(entry, build_kernel(entry.spec, entry.request, origin=entry.origin))
        built = cached_kernel(entry.spec, entry.request, origin=entry.origin)
    except FlashgenError as error:
        return Outcome(entry, error=error)
    return None if built is None else Outcome(entry, built)


def _kept(outcome: Outcome, folder: Path | None, strict: bool) -> Outcome:
    built = outcome.built
    if built is None:
        return outcome
    try:
        if folder is not None:
            write_kernel(folder, built)
    except (OSError, ArtifactError) as error:
        return Outcome(outcome.entry, error=ArtifactError(f"cannot write {built.name} to {folder}: {error}"))
    if strict and not built.shippable:
        text = f"{built.name} must not be shipped: {'; '.join(built.resources.complaints)}. Choose another tile"
        return Outcome(outcome.entry, built, NotShippableError(text))
    return outcome
