"""Looks over the machine: what compiles kernels, what runs them, what is missing, and the command that fixes it."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

from flashgen import env
from flashgen.errors import FlashgenError
from flashgen.findings import Finding, Report, Status
from flashgen.generator import paths

# NVRTC 12.6 and 12.8 serialise forwards (C7515); 13.1 to 13.5 were measured 2 to 6 % slower at head dim 128 than 13.0.
FIRST_FAST_NVRTC, LAST_FAST_NVRTC = (12, 9), (13, 0)
HOPPER = (9, 0)


def diagnose(*, compile_probe: bool = False) -> Report:
    """Look at everything. With ``compile_probe`` also compile a small file that includes CuTe, which takes seconds."""
    python = Finding("python", Status.ok, f"{platform.python_version()} ({sys.executable})")
    probe = [_compile_probe()] if compile_probe else []
    return Report((python, *_packages(), *_toolchain(), *_torch(), _driver(), *_paths(), *_variables(), *probe))


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _attempt(name: str, look: Callable[[], str]) -> Finding:
    """A finding that is an error when the look raises."""
    try:
        return Finding(name, Status.ok, look())
    except FlashgenError as error:
        found, _, fix = str(error).partition(" Install with: ")
        return Finding(name, Status.error, found, fix)
    except Exception as error:  # a broken install may raise anything, and that is what doctor is there to tell
        return Finding(name, Status.error, f"{type(error).__name__}: {_first_line(error)}")


def _packages() -> list[Finding]:
    versions = {package: _version(package) for package in ("cuda-core", "cuda-bindings", "cuda-pathfinder")}
    return [
        Finding(package, Status.ok, version)
        if version
        else Finding(package, Status.error, "not installed", f"pip install {package}")
        for package, version in versions.items()
    ]


def _toolchain() -> list[Finding]:
    # The toolchain imports cuda.bindings and cuda.pathfinder on use; what they raise is told, not thrown.
    from flashgen.toolchain import find_toolchain, nvrtc_version

    nvrtc = _attempt("NVRTC", nvrtc_version)
    if nvrtc.status is Status.error:
        return [nvrtc]
    nvrtc = _judged(nvrtc)
    headers = _attempt("header digest", lambda: find_toolchain().header_digest[:16])
    if headers.status is Status.error:
        return [nvrtc, headers]
    tools = find_toolchain()
    versions = {"CUTLASS": tools.cutlass_version, "CCCL": tools.cccl_version, "CUDA headers": tools.cuda_version}
    return [nvrtc, *(Finding(name, Status.ok, version) for name, version in versions.items()), headers]


def _judged(nvrtc: Finding) -> Finding:
    version = tuple(int(part) for part in nvrtc.value.split(".")[:2])
    if version < FIRST_FAST_NVRTC:
        why = "it serialises the products of forwards (C7515), which are right but many times slower"
        fix = "pip install 'nvidia-cuda-nvrtc-cu12>=12.9,<13'"
    elif version > LAST_FAST_NVRTC:
        why = "its kernels were measured 2 to 6 % slower at head dim 128 than NVRTC 13.0's"
        fix = "pip install 'nvidia-cuda-nvrtc>=13.0,<13.1'"
    else:
        return nvrtc
    return Finding("NVRTC", Status.warning, f"{nvrtc.value}: {why}", fix)


def _torch() -> list[Finding]:
    version = _version("torch")
    if version is None:
        return [Finding("torch", Status.warning, "not installed: kernels cannot be called", "pip install torch")]
    try:
        import torch
    except Exception as error:
        return [Finding("torch", Status.warning, f"{version} does not import: {_first_line(error)}")]
    built_for = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "CPU build: runs no kernel"
    return [Finding("torch", Status.ok if torch.version.cuda else Status.info, f"{version}, {built_for}"), *_gpus()]


def _driver() -> Finding:
    from flashgen.driver import driver
    from flashgen.toolchain import nvrtc_version

    try:
        major, minor = driver().version()
    except FlashgenError:
        return Finding("driver", Status.info, "no CUDA driver: kernels build here and run elsewhere")
    value = f"takes CUDA up to {major}.{minor}"
    try:
        compiler = int(nvrtc_version().split(".")[0])
    except FlashgenError:
        compiler = major
    if compiler > major:
        fix = f"update the driver, or use NVRTC {major}: pip install 'flashgen[cu{major}]'"
        return Finding("driver", Status.warning, f"{value}: may refuse what NVRTC {compiler} compiled", fix)
    return Finding("driver", Status.ok, value)


def _gpus() -> list[Finding]:
    found = []
    try:
        import torch

        for index in range(torch.cuda.device_count()):
            gpu = torch.cuda.get_device_properties(index)
            hopper = (gpu.major, gpu.minor) == HOPPER
            use = "runs sm90a kernels" if hopper else "no kernel for it yet (available: 9.0)"
            value = f"{gpu.name}, compute capability {gpu.major}.{gpu.minor}: {use}"
            found.append(Finding(f"GPU {index}", Status.ok if hopper else Status.info, value))
    except Exception as error:
        return [Finding("GPU", Status.info, f"cannot be asked for: {_first_line(error)}")]
    return found or [Finding("GPU", Status.info, "none that torch can use")]


def _paths() -> list[Finding]:
    found = [Finding("package", Status.ok, str(Path(__file__).resolve().parent))]
    for name, folder in (("templates", paths.TEMPLATES), ("configs", paths.CONFIGS)):
        if folder.is_dir():
            found.append(Finding(name, Status.ok, str(folder)))
        else:
            found.append(Finding(name, Status.error, f"missing: {folder}", "pip install --force-reinstall flashgen"))
    return [*found, _cache()]


def _cache() -> Finding:
    folder = env.cache_dir()
    again, fix = "kernels are compiled again in every process", f"export {env.CACHE_DIR.name}=/some/folder"
    if folder is None:
        return Finding("cache", Status.warning, f"no home folder: {again}", fix)
    nearest = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK):
        return Finding("cache", Status.ok, str(folder))
    return Finding("cache", Status.warning, f"{folder} cannot be written: {again}", fix)


def _variables() -> list[Finding]:
    return [Finding(variable.name, Status.info, value) for variable in env.VARIABLES if (value := variable.get())]


def _compile_probe() -> Finding:
    from flashgen.compiler import compile_source
    from flashgen.toolchain import find_toolchain

    source = '#include <cute/tensor.hpp>\nextern "C" __global__ void probe() {}\n'

    def seconds() -> str:
        return f"a file of CuTe in {compile_source(source, 'probe', 'sm90a', find_toolchain()).seconds:.1f} s"

    return _attempt("compile", seconds)
