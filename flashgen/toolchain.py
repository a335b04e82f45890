"""Finds what compiles a kernel: NVRTC, and the headers of flashgen, CUTLASS, CCCL and CUDA. No GPU and no nvcc."""

from __future__ import annotations

import hashlib
import importlib.util
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

from flashgen import env
from flashgen.errors import ToolchainError
from flashgen.generator.paths import INCLUDE

NVRTC = "nvidia-cuda-nvrtc>=13.0,<13.1"
RUNTIME = "nvidia-cuda-runtime>=13.0,<13.2"
CRT = "nvidia-cuda-crt>=13.0,<13.2"
CCCL = "nvidia-cuda-cccl>=13.0,<13.2"
CUTLASS = "nvidia-cutlass>=4.2"


@dataclass(frozen=True)
class Toolchain:
    """What compiles a kernel. ``header_digest`` covers the headers' content and versions, and no path."""

    nvrtc_version: str
    include_dirs: tuple[Path, ...]
    cutlass_version: str
    cccl_version: str
    cuda_version: str
    header_digest: str

    def facts(self) -> dict[str, str]:
        """The versions and the digest, for reports: nothing in it depends on where things are installed."""
        return {name: value for name, value in asdict(self).items() if name != "include_dirs"}


def find_toolchain() -> Toolchain:
    """The toolchain of this process, found once; ToolchainError says what is missing and the command that fixes it."""
    return _find(env.cutlass_include())


@cache
def _find(own_cutlass: Path | None) -> Toolchain:
    nvrtc = nvrtc_version()
    if importlib.util.find_spec("cuda.core") is None:
        raise _missing("cuda-core", "cuda-core>=1.0")
    cutlass = _cutlass(own_cutlass)
    cuda, cccl = _cuda(), _header_dir("cccl", "cuda/std/__cccl/version.h", CCCL, "CCCL (libcu++) headers")
    crt = _crt(cuda)
    cutlass_version = _cutlass_version(cutlass / "cutlass/version.h")
    cccl_version = _dotted(_define(cccl / "cuda/std/__cccl/version.h", "CCCL_VERSION", CCCL), 1_000_000, 1000)
    cuda_version = _dotted(_define(cuda / "cuda.h", "CUDA_VERSION", RUNTIME), 1000, 10)
    _refuse_new_cccl(cutlass_version, cccl_version)
    return Toolchain(
        nvrtc_version=nvrtc,
        include_dirs=tuple(dict.fromkeys((INCLUDE, cutlass, cuda, crt, cccl))),
        cutlass_version=cutlass_version,
        cccl_version=cccl_version,
        cuda_version=cuda_version,
        header_digest=_header_digest((cutlass_version, cccl_version, cuda_version), own_cutlass),
    )


def is_current(toolchain: Toolchain) -> bool:
    """Whether flashgen's headers are still those of the digest; if not, the next ``find_toolchain`` looks again.

    Someone who edits headers while a process compiles must not find machine code of the new under the key of the old.
    """
    versions = (toolchain.cutlass_version, toolchain.cccl_version, toolchain.cuda_version)
    if _header_digest(versions, env.cutlass_include()) == toolchain.header_digest:
        return True
    _find.cache_clear()
    return False


def _missing(what: str, package: str, detail: object = "") -> ToolchainError:
    why = f" ({detail})" if detail else ""
    return ToolchainError(
        f"{what} not found{why}. Install with: pip install 'flashgen[cu13]'  (or: pip install '{package}')"
    )


@cache
def nvrtc_version() -> str:
    """``major.minor`` of the NVRTC that loads, with the patch level where pip installed it."""
    try:
        from cuda.bindings import nvrtc
        from cuda.pathfinder import load_nvidia_dynamic_lib
    except ImportError as error:
        raise _missing("cuda-bindings", "cuda-bindings>=12.9", error) from error
    try:
        path = load_nvidia_dynamic_lib("nvrtc").abs_path
        status, major, minor = nvrtc.nvrtcVersion()
    except Exception as error:  # pathfinder and the bindings have a class each for "no such library"
        raise _missing("NVRTC", NVRTC, str(error).strip().splitlines()[0] if str(error).strip() else "") from error
    if int(status):
        raise ToolchainError(f"NVRTC does not tell its version: {status.name}")
    version = f"{major}.{minor}"
    for package in ("nvidia-cuda-nvrtc", f"nvidia-cuda-nvrtc-cu{major}"):
        try:
            found = metadata.distribution(package)
        except metadata.PackageNotFoundError:
            continue
        if found.version.startswith(f"{version}.") and path and Path(path).is_relative_to(str(found.locate_file(""))):
            return found.version
    return version


def _header_dir(library: str, probe: str, package: str, what: str) -> Path:
    try:
        from cuda.pathfinder import find_nvidia_header_directory
    except ImportError as error:
        raise _missing("cuda-pathfinder", "cuda-pathfinder>=1.3", error) from error
    found = find_nvidia_header_directory(library)
    if found is None or not (Path(found) / probe).is_file():
        raise _missing(f"{what} ({probe})", package, f"looked in {found}" if found else "")
    return Path(found)


def _cuda() -> Path:
    return _header_dir("cudart", "cuda.h", RUNTIME, "CUDA runtime headers")


def _crt(cuda: Path) -> Path:
    """The folder that holds ``crt/``: in pip packages of CUDA 13 and in toolkits the runtime's own, in cu12 nvcc's."""
    if (cuda / "crt/host_defines.h").is_file():
        return cuda
    return _header_dir("nvcc", "crt/host_defines.h", CRT, "CUDA's crt headers")


def _cutlass(own: Path | None) -> Path:
    if own is not None:
        if (own / "cute/tensor.hpp").is_file():
            return own
        raise ToolchainError(
            f"{env.CUTLASS_INCLUDE.name}={own} holds no cute/tensor.hpp: name the include folder of a CUTLASS "
            f"checkout, or unset it to use the package (pip install '{CUTLASS}')"
        )
    # Importing cutlass_library would import scipy and networkx: only its place is wanted.
    spec = importlib.util.find_spec("cutlass_library")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        include = Path(folder) / "source/include"
        if (include / "cute/tensor.hpp").is_file():
            return include
    raise _missing("CUTLASS headers (cute/tensor.hpp)", CUTLASS)


def _define(header: Path, name: str, package: str) -> int:
    try:
        found = re.search(rf"^\s*#\s*define\s+{name}\s+(\d+)\s*$", header.read_text("utf-8", "replace"), re.MULTILINE)
    except OSError as error:
        raise _missing(str(header), package, error) from error
    if not found:
        raise ToolchainError(f"{header} does not define {name}. Install again with: pip install '{package}'")
    return int(found[1])


def _dotted(number: int, major: int, minor: int) -> str:
    return f"{number // major}.{number % major // minor}" + (f".{number % minor}" if major == 1_000_000 else "")


def _cutlass_version(header: Path) -> str:
    return ".".join(str(_define(header, f"CUTLASS_{part}", CUTLASS)) for part in ("MAJOR", "MINOR", "PATCH"))


def _refuse_new_cccl(cutlass: str, cccl: str) -> None:
    """CUTLASS 4.2 declares again what CCCL 3.2 (packaged as 13.2) defines, and every kernel would fail on it."""
    if _numbers(cutlass) < (4, 3) and _numbers(cccl) >= (3, 2):
        raise ToolchainError(
            f"CCCL {cccl} is too new for CUTLASS {cutlass} (its cute/container/array.hpp does not compile with "
            f"CCCL 3.2, packaged as nvidia-cuda-cccl 13.2, or newer). Install an older one with: pip install '{CCCL}'"
        )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])


def _header_digest(versions: tuple[str, str, str], own_cutlass: Path | None) -> str:
    digest = hashlib.sha256("cutlass {}\ncccl {}\ncuda {}\n".format(*versions).encode())
    # A CUTLASS of the user's own may be any commit of any fork: its version says too little, so its content counts.
    for tree in (INCLUDE,) if own_cutlass is None else (INCLUDE, own_cutlass):
        for name, path in _files(tree):
            content = path.read_bytes()
            digest.update(f"{name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


def _files(tree: Path) -> Iterator[tuple[str, Path]]:
    found = ((path.relative_to(tree).as_posix(), path) for path in tree.rglob("*") if path.is_file())
    return iter(sorted(found))
