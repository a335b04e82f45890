"""The pipeline, spelled out once: spec -> plan -> source -> cubin. JIT, AOT and tuning come through here. No GPU."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from flashgen import env
from flashgen.cache import Cached, CubinCache, cubin_cache
from flashgen.errors import NoCompileError, ToolchainError
from flashgen.files import write_atomic
from flashgen.generator import AnyPlan, AnyRequest, KernelSpec, Op, load_config, render, to_yaml
from flashgen.generator import plan as make_plan
from flashgen.generator.shipped import shipped_path
from flashgen.resources import Resources
from flashgen.toolchain import Toolchain, find_toolchain


@dataclass(frozen=True)
class BuiltKernel:
    """A compiled kernel with all that is known of it. ``seconds`` is what its compilation took, when it took place.

    A backward is three kernels in one cubin, and ``resources`` are of all of them.
    """

    plan: AnyPlan
    source: str
    cubin: bytes
    sha256: str
    resources: Resources
    toolchain: Toolchain
    origin: str
    cached: bool
    seconds: float

    @property
    def name(self) -> str:
        """The canonical name."""
        return self.plan.name

    @property
    def shippable(self) -> bool:
        """Whether it neither spills nor has its WGMMA serialised."""
        return self.resources.shippable

    def spec_yaml(self) -> str:
        """A config that builds this very kernel, every choice explicit; its first line says by which compiler."""
        return f"# Machine code by NVRTC {self.toolchain.nvrtc_version}, sha256 {self.sha256}\n{to_yaml(self.plan)}"

    def report(self) -> dict[str, Any]:
        """Everything but the bytes, as JSON takes it."""
        return {
            "name": self.name,
            "origin": self.origin,
            "sha256": self.sha256,
            "cubin_bytes": len(self.cubin),
            "shippable": self.shippable,
            "complaints": list(self.resources.complaints),
            "resources": self.resources.to_dict(),
            "compile_seconds": round(self.seconds, 3),
            "toolchain": self.toolchain.facts(),
            "plan": asdict(self.plan)
            | {
                "threads": self.plan.threads,
                "smem_bytes": self.plan.smem_bytes,
                "accumulator_registers": self.plan.accumulator_registers,
            },
        }


def build_kernel(spec: KernelSpec, request: AnyRequest | None = None, *, origin: str = "") -> BuiltKernel:
    """Plan, render, and take the cubin from the cache or the compiler.

    Raises PlanError, ToolchainError, CompileError, or, where FLASHGEN_NO_COMPILE forbids to compile, NoCompileError.
    """
    plan = make_plan(spec, request)
    if env.no_compile():
        built = _look_up(plan, origin)
        if built is None:
            raise NoCompileError(
                f"{plan.name} is neither loaded nor in the cache ({cubin_cache().folder}), and {env.NO_COMPILE.name} "
                f"is set. Build it with `{build_command(spec)}` and load it with flashgen.load('build'), or unset it"
            )
        return built
    toolchain = find_toolchain()
    text = keyed_source(plan)
    built = _built(plan, origin, toolchain, cubin_cache().get_or_compile(text, plan.name, plan.spec.arch, toolchain))
    if (folder := env.dump_dir()) is not None:
        _dump(built, folder)
    return built


def cached_kernel(spec: KernelSpec, request: AnyRequest | None = None, *, origin: str = "") -> BuiltKernel | None:
    """The kernel if the cache has it, else None; never compiles."""
    return _look_up(make_plan(spec, request), origin)


def build_command(spec: KernelSpec) -> str:
    """The shell command that builds a spec's kernel."""
    path = shipped_path(spec)
    if path.is_file() and any(entry.spec == spec for entry in load_config(path)):
        return f"flashgen build --only {spec.name} -o build"
    values = "" if spec.head_dim_v == spec.head_dim_qk else f" --head-dim-v {spec.head_dim_v}"
    kernel = "" if spec.op is Op.attention_fwd else f" --kernel {spec.op}"
    new = f"flashgen new{kernel} --head-dim {spec.head_dim_qk}{values} --arch {spec.arch}"
    return f"{new} > kernel.yaml && flashgen build kernel.yaml -o build"


@lru_cache(maxsize=256)
def keyed_source(plan: AnyPlan) -> str:
    """What is compiled: the source without an origin, so that one kernel asked for from two places is one key."""
    return render(plan)


def _look_up(plan: AnyPlan, origin: str) -> BuiltKernel | None:
    try:
        toolchain = find_toolchain()
    except ToolchainError:  # without a compiler's version there is no key, so nothing can be found
        return None
    cache: CubinCache = cubin_cache()
    found = cache.get(cache.key(keyed_source(plan), plan.name, plan.spec.arch, toolchain))
    return None if found is None else _built(plan, origin, toolchain, found)


def _built(plan: AnyPlan, origin: str, toolchain: Toolchain, found: Cached) -> BuiltKernel:
    return BuiltKernel(
        plan=plan,
        source=render(plan, origin),
        cubin=found.cubin,
        sha256=found.sha256,
        resources=found.resources,
        toolchain=toolchain,
        origin=origin,
        cached=found.cached,
        seconds=found.seconds,
    )


def write_files(built: BuiltKernel, folder: Path) -> None:
    """Write ``kernel.cu``, ``kernel.cubin``, ``spec.yaml`` and ``report.json`` into the kernel's own folder."""
    write_atomic(folder / "kernel.cu", built.source.encode())
    write_atomic(folder / "spec.yaml", built.spec_yaml().encode())
    write_atomic(folder / "kernel.cubin", built.cubin)
    write_atomic(folder / "report.json", (json.dumps(built.report(), indent=1) + "\n").encode())


def _dump(built: BuiltKernel, folder: Path) -> None:
    try:
        write_files(built, folder / built.name)
    except OSError as error:
        env.logger().warning("cannot dump %s to %s (%s)", built.name, folder, error.strerror or error)
