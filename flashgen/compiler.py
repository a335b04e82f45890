"""Source text to cubin through NVRTC. Nothing is cached here; ``flashgen.cache`` does that."""

from __future__ import annotations

import hashlib
import re
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from flashgen import env
from flashgen.errors import CompileError
from flashgen.resources import Resources, parse_log
from flashgen.toolchain import Toolchain

if TYPE_CHECKING:
    from cuda.core import ProgramOptions

_header_folder: Path | None = None
_FAILURE = re.compile("error|fatal", re.IGNORECASE)  # the front end says error, ptxas fatal

LOG_LINES = 40  # of the log in an exception's message; the whole log is in its ``log`` and beside the source


@dataclass(frozen=True)
class Compiled:
    """One compiled source; ``seconds`` is the compiler's time."""

    cubin: bytes
    log: str
    resources: Resources
    seconds: float


class _Log:
    """What ``Program.compile`` writes its log to."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> None:
        self.text += text


def reuse_headers(folder: Path | None) -> None:
    """Keep parsed headers in ``folder`` from now on: this process's compilations but the first take half the time.

    They are 150 MB, and NVRTC takes them up in the process that wrote them alone, so this is for those that compile
    several kernels one after the other. The machine code is the same. None turns it off; the caller removes the folder.
    """
    global _header_folder
    _header_folder = folder


def options(
    name: str, arch: str, include_dirs: tuple[Path, ...] = (), header_folder: Path | None = None
) -> ProgramOptions:
    """Options of every compilation. Without folders they are the part that a cache key may hold (no path)."""
    from cuda.core import ProgramOptions

    return ProgramOptions(
        name=f"{name}.cu",
        arch=arch.replace("sm", "sm_", 1),
        std="c++17",
        # CuTe's functions carry no execution space that NVRTC would know.
        device_as_default_execution_space=True,
        ptxas_options="-v",
        include_path=[str(folder) for folder in include_dirs] or None,
        pch=header_folder is not None or None,
        pch_dir=str(header_folder) if header_folder else None,
    )


def compile_source(source: str, name: str, arch: str, toolchain: Toolchain) -> Compiled:
    """Compile ``source`` for ``arch`` ("sm90a"). Raises CompileError with the log and the path of the source."""
    start = time.perf_counter()
    try:
        code, log = _compile(source, options(name, arch, toolchain.include_dirs, _header_folder))
    except CompileError as error:
        if _header_folder is None:
            raise _failed(source, name, error.log) from error.__cause__
        try:  # a full disk under the parsed headers is no fault of the kernel
            code, log = _compile(source, options(name, arch, toolchain.include_dirs))
        except CompileError as again:
            raise _failed(source, name, again.log) from again.__cause__
    try:
        resources = parse_log(log)
    except ValueError as error:
        raise _failed(source, name, f"{error}\n{log}") from error
    return Compiled(code, log, resources, time.perf_counter() - start)


def _compile(source: str, chosen: ProgramOptions) -> tuple[bytes, str]:
    """The cubin and the log; CompileError holds the log alone."""
    from cuda.core import Program

    log = _Log()
    try:
        code = bytes(Program(source, "c++", options=chosen).compile("cubin", logs=log).code)
    except Exception as error:  # cuda.core has a class for each layer; whatever it was, this source did not compile
        text = _clean(log.text or str(error).split("compilation log:")[-1])
        raise CompileError("did not compile", text) from error
    return code, _clean(log.text)


def _clean(log: str) -> str:
    return log.replace("\0", "").strip()


def _failed(source: str, name: str, log: str) -> CompileError:
    path = _keep(source, name, log)
    lines = log.splitlines()
    # NVRTC warns at length before it fails: begin where the errors do.
    first = next((i for i, line in enumerate(lines) if _FAILURE.search(line)), 0)
    shown = lines[first : first + LOG_LINES]
    rest = len(lines) - first - len(shown)
    more = f"\n... {rest} more lines in the .log beside the source" if rest > 0 else ""
    return CompileError(f"{name} did not compile. Source: {path}\n" + "\n".join(shown) + more, log, path)


def _keep(source: str, name: str, log: str) -> Path | None:
    """Write a refused source where its writer can look at it: the dump folder, the cache, or the temporary folder."""
    stem = f"{name}-{hashlib.sha256(source.encode()).hexdigest()[:8]}"
    cache = env.cache_dir()
    for folder in (
        env.dump_dir(),
        cache / "failed" if cache else None,
        Path(tempfile.gettempdir()) / "flashgen-failed",
    ):
        if folder is None:
            continue
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{stem}.log").write_text(log + "\n")
            path = folder / f"{stem}.cu"
            path.write_text(source)
        except OSError:
            continue
        return path
    return None
