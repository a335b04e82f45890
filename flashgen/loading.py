"""Kernels for callers: loaded ahead of time from a folder, or compiled on first use. One of each in a process."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from flashgen import env
from flashgen.artifacts import Entry, read_manifest
from flashgen.backward_kernel import BackwardKernel
from flashgen.callable_kernel import Code, Kernel
from flashgen.errors import ArgumentError, ArtifactError
from flashgen.generator import AnyPlan, BackwardPlan, ConfigEntry, KernelPlan, KernelSpec, load_config, plan_entry
from flashgen.generator import plan as make_plan
from flashgen.generator.shipped import shipped_spec
from flashgen.kernel import BuiltKernel, build_kernel

AnyKernel = Kernel | BackwardKernel


class KernelLibrary(Mapping[str, Any]):
    """The kernels of a folder, forwards and backwards, by canonical name."""

    def __init__(self, folder: Path, kernels: dict[str, AnyKernel]) -> None:
        self.folder = folder
        self._kernels = kernels

    def __getitem__(self, name: str) -> Any:
        return self._kernels[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._kernels)

    def __len__(self) -> int:
        return len(self._kernels)

    def __repr__(self) -> str:
        return f"<flashgen.KernelLibrary {self.folder}: {len(self)} kernels>"


_kernels: dict[AnyPlan, AnyKernel] = {}
_preferred: dict[KernelSpec, AnyKernel] = {}
_by_spec: dict[KernelSpec, AnyKernel] = {}
_lock = threading.Lock()


def load(folder: str | os.PathLike[str]) -> KernelLibrary:
    """Read the kernels that ``flashgen build`` put into a folder, and make ``flashgen.attention`` prefer them.

    Every cubin is checked against the manifest's sha256; ArtifactError when one is missing or was changed. Loading a
    second folder adds its kernels, and the later one wins where both have a spec. Nothing is compiled or run.
    """
    manifest = read_manifest(folder)
    if not manifest.kernels:
        raise ArtifactError(f"{manifest.folder}: the manifest holds no kernel: build some with `flashgen build`")
    kernels = {name: new_kernel(entry.plan, _reader(entry)) for name, entry in manifest.kernels.items()}
    with _lock:
        for kernel in kernels.values():
            _preferred[kernel.spec] = kernel
    _forget_calls()
    return KernelLibrary(manifest.folder, kernels)


def unload() -> None:
    """Make ``flashgen.attention`` forget the folders that were loaded."""
    with _lock:
        _preferred.clear()
    _forget_calls()


def kernel_for(spec: KernelSpec, keys: int | None = None) -> Any:
    """The Kernel or BackwardKernel of a spec: a loaded one first, else what this process compiles when it is called.

    Of several for one problem it is the one meant for so many keys; a loaded one of another range is still preferred
    to compiling, since every one is right for any number.
    """
    if keys is not None:
        spec = _loaded_spec(spec, keys) or shipped_spec(spec, keys)
    found = _preferred.get(spec) or _by_spec.get(spec)
    if found is None:
        made = _kernel_of(make_plan(spec))
        with _lock:
            found = _preferred.get(spec) or _by_spec.setdefault(spec, made)
    return found


def _loaded_spec(spec: KernelSpec, keys: int) -> KernelSpec | None:
    loaded = [other for other in list(_preferred) if other.any_length == spec]
    # The narrowest range that holds them: a kernel made for few lengths knows better than one made for all.
    loaded.sort(key=lambda other: (not other.meant_for(keys), -other.keys_from, other.keys_below is None))
    return loaded[0] if loaded else None


def get_kernel(spec: KernelSpec | ConfigEntry | AnyPlan | str | os.PathLike[str]) -> Any:
    """One kernel to call, from a spec or from YAML (text or a file's path) that describes exactly one.

    A ``Kernel``, or for attention_bwd a ``BackwardKernel``.
    A spec or a config without a tile takes the shipped or the planned one. Compiling waits for the first CUDA tensor.
    """
    if isinstance(spec, KernelSpec):
        return kernel_for(spec)
    if isinstance(spec, KernelPlan | BackwardPlan):
        return _kernel_of(spec)
    if isinstance(spec, ConfigEntry):
        return _kernel_of(plan_entry(spec))
    entries = load_config(spec if isinstance(spec, str) else Path(spec))
    if len(entries) != 1:
        names = ", ".join(entry.spec.name for entry in entries[:4]) + (", ..." if len(entries) > 4 else "")
        raise ArgumentError(f"get_kernel: got a config of {len(entries)} kernels ({names}); expected one kernel")
    return _kernel_of(plan_entry(entries[0]))


def _kernel_of(plan: AnyPlan) -> AnyKernel:
    preferred = _preferred.get(plan.spec)
    if preferred is not None and preferred.plan == plan:
        return preferred
    with _lock:
        return _kernels.setdefault(plan, new_kernel(plan, lambda: _compile(plan)))


def new_kernel(plan: AnyPlan, build: Callable[[], Code]) -> AnyKernel:
    """A kernel of its plan's direction, whose machine code ``build`` gives when it is first asked for."""
    return BackwardKernel(plan, build) if isinstance(plan, BackwardPlan) else Kernel(plan, build)


def _compile(plan: AnyPlan) -> Code:
    built = build_kernel(plan.spec, plan.request)
    if not built.shippable:
        env.logger().warning(
            "%s gives right results slowly: %s. `flashgen doctor` tells whether NVRTC %s is why",
            built.name, "; ".join(built.resources.complaints), built.toolchain.nvrtc_version,
        )  # fmt: skip
    return code_of(built)


def code_of(built: BuiltKernel) -> Code:
    """What a kernel needs of what was built."""
    return Code(built.cubin, built.sha256, built.toolchain.facts())


def _reader(entry: Entry) -> Callable[[], Code]:
    # Read at once: what was checked is what will run, whatever happens to the folder afterwards.
    code = Code(entry.read_cubin(), entry.sha256, entry.toolchain)
    return lambda: code


def _forget_calls() -> None:
    import sys

    # Without torch nothing has been called, and loading a folder need not import it.
    calls = sys.modules.get("flashgen.calls")
    if calls is not None:
        calls.forget_calls()
