"""What the compile tests share: a small source, a cache of their own, kernels made without a compiler."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flashgen.compiler import reuse_headers
from flashgen.generator import KernelSpec, plan, render
from flashgen.kernel import BuiltKernel
from flashgen.resources import Resources
from flashgen.toolchain import Toolchain, find_toolchain

ROOT = Path(__file__).resolve().parent.parent.parent
SMALL = 'extern "C" __global__ void small(int* out) { out[threadIdx.x] = int(threadIdx.x); }\n'


@pytest.fixture
def small() -> str:
    """A source that compiles in a few milliseconds."""
    return SMALL


@pytest.fixture(scope="session")
def toolchain() -> Toolchain:
    return find_toolchain()


@pytest.fixture(scope="module")
def parsed_headers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A module's kernels are compiled with headers that are parsed once."""
    folder = tmp_path_factory.mktemp("headers")
    reuse_headers(folder)
    yield
    reuse_headers(None)
    shutil.rmtree(folder)


@pytest.fixture
def cache_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder that FLASHGEN_CACHE_DIR names."""
    monkeypatch.setenv("FLASHGEN_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def made() -> Callable[..., BuiltKernel]:
    """Makes a BuiltKernel of a head dim around any bytes, without compiling."""

    def make(head_dim: int = 64, cubin: bytes = b"machine code", spills: int = 0) -> BuiltKernel:
        chosen = plan(KernelSpec.forward(head_dim=head_dim))
        return BuiltKernel(
            plan=chosen,
            source=render(chosen, "x.yaml:1"),
            cubin=cubin,
            sha256=hashlib.sha256(cubin).hexdigest(),
            resources=Resources(168, spills, spills, 0, 0),
            toolchain=Toolchain("13.0.88", (), "4.2.0", "3.1.4", "13.1", "0" * 64),
            origin="x.yaml:1",
            cached=False,
            seconds=1.0,
        )

    return make


@pytest.fixture
def start(tmp_path: Path) -> Callable[..., subprocess.Popen[str]]:
    """Starts Python on a program in a process of its own, with this checkout and extra environment variables."""

    def run(program: str, **variables: str) -> subprocess.Popen[str]:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("FLASHGEN_")} | variables
        environment["PYTHONPATH"] = str(ROOT)
        return subprocess.Popen(
            [sys.executable, "-c", program],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return run
