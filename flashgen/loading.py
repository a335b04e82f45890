"""Kernels for callers: loaded ahead of time from a folder, or compiled on first use. One of each in a process."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from flashgen.artifacts import Entry, read_manifest
from flashgen.errors import ArgumentError, ArtifactError
from flashgen.generator import ConfigEntry, KernelPlan, KernelSpec, load_config, plan_entry
from flashgen.generator import plan as make_plan
from flashgen.kernel import build_kernel
from flashgen.launch import LoadedKernel

if TYPE_CHECKING:
    from torch import Tensor

    from flashgen.calls import Launcher


class Kernel:
    """One kernel to call. Its machine code is compiled or read when a CUDA tensor first needs it; CPU tensors do not.

    Safe to use from several threads: it is built once.
    """

    def __init__(self, plan: KernelPlan, cubin: Callable[[], bytes]) -> None:
        self.plan = plan
        self._cubin = cubin
        self._loaded: LoadedKernel | None = None
        self._launcher: Launcher | None = None
        self._lock = threading.Lock()

    @property
    def spec(self) -> KernelSpec:
        """What it computes."""
        return self.plan.spec

    @property
    def name(self) -> str:
        """The canonical name."""
        return self.plan.name

    @property
    def loaded(self) -> LoadedKernel:
        """Its machine code, compiled now if nobody has; raises what build_kernel raises."""
        if self._loaded is None:
            with self._lock:
                if self._loaded is None:
                    self._loaded = LoadedKernel(self.plan, self._cubin())
        return self._loaded

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, *, softmax_scale: float | None = None, return_lse: bool = False
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Attention as ``flashgen.attention`` does it, by this kernel; ArgumentError for tensors of another spec."""
        from flashgen.calls import Launcher
        from flashgen.cpu import attend
        from flashgen.select import check_no_grad, check_scale, select

        check_no_grad(q, k, v)
        causal = self.spec.mask == "causal"
        if q.is_cuda:
            if self._launcher is None:
                self._launcher = Launcher(self._serve)
            out, lse = self._launcher(q, k, v, causal, softmax_scale, return_lse)
        else:
            self._check(select(q, k, v, causal=causal, arch=self.spec.arch))
            out, lse = attend(self.plan, q, k, v, check_scale(softmax_scale, q.shape[3]))
        return (out, lse) if return_lse else out  # type: ignore[return-value]

    def _serve(self, spec: KernelSpec) -> LoadedKernel:
        self._check(spec)
        return self.loaded

    def _check(self, spec: KernelSpec) -> None:
        if spec != self.spec:
            raise ArgumentError(f"kernel {self.name}: got tensors of {spec.name}; expected tensors of this kernel")

    def __repr__(self) -> str:
        return f"<flashgen.Kernel {self.name} {self.plan.block_m}x{self.plan.block_n}x{self.plan.stages}>"


class KernelLibrary(Mapping[str, Kernel]):
    """The kernels of a folder, by canonical name."""

    def __init__(self, folder: Path, kernels: dict[str, Kernel]) -> None:
        self.folder = folder
        self._kernels = kernels

    def __getitem__(self, name: str) -> Kernel:
        return self._kernels[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._kernels)

    def __len__(self) -> int:
        return len(self._kernels)

    def __repr__(self) -> str:
        return f"<flashgen.KernelLibrary {self.folder}: {len(self)} kernels>"


_kernels: dict[KernelPlan, Kernel] = {}
_preferred: dict[KernelSpec, Kernel] = {}
_by_spec: dict[KernelSpec, Kernel] = {}
_lock = threading.Lock()


def load(folder: str | os.PathLike[str]) -> KernelLibrary:
    """Read the kernels that ``flashgen build`` put into a folder, and make ``flashgen.attention`` prefer them.

    Every cubin is checked against the manifest's sha256; ArtifactError when one is missing or was changed. Loading a
    second folder adds its kernels, and the later one wins where both have a spec. Nothing is compiled or run.
    """
    manifest = read_manifest(folder)
    if not manifest.kernels:
        raise ArtifactError(f"{manifest.folder}: the manifest holds no kernel: build some with `flashgen build`")
    kernels = {name: Kernel(entry.plan, _reader(entry)) for name, entry in manifest.kernels.items()}
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


def kernel_for(spec: KernelSpec) -> Kernel:
    """The kernel that serves a spec: a loaded one first, else the one that this process compiles when it is called."""
    found = _preferred.get(spec) or _by_spec.get(spec)
    if found is None:
        made = _kernel_of(make_plan(spec))
        with _lock:
            found = _preferred.get(spec) or _by_spec.setdefault(spec, made)
    return found


def get_kernel(spec: KernelSpec | ConfigEntry | KernelPlan | str | os.PathLike[str]) -> Kernel:
    """One kernel to call, from a spec or from YAML (text or a file's path) that describes exactly one.

    A spec or a config without a tile takes the shipped or the planned one. Compiling waits for the first CUDA tensor.
    """
    if isinstance(spec, KernelSpec):
        return kernel_for(spec)
    if isinstance(spec, KernelPlan):
        return _kernel_of(spec)
    if isinstance(spec, ConfigEntry):
        return _kernel_of(plan_entry(spec))
    entries = load_config(spec if isinstance(spec, str) else Path(spec))
    if len(entries) != 1:
        names = ", ".join(entry.spec.name for entry in entries[:4]) + (", ..." if len(entries) > 4 else "")
        raise ArgumentError(f"get_kernel: got a config of {len(entries)} kernels ({names}); expected one kernel")
    return _kernel_of(plan_entry(entries[0]))


def _kernel_of(plan: KernelPlan) -> Kernel:
    preferred = _preferred.get(plan.spec)
    if preferred is not None and preferred.plan == plan:
        return preferred
    with _lock:
        return _kernels.setdefault(plan, Kernel(plan, lambda: build_kernel(plan.spec, plan.request).cubin))


def _reader(entry: Entry) -> Callable[[], bytes]:
    # Read at once: what was checked is what will run, whatever happens to the folder afterwards.
    cubin = entry.read_cubin()
    return lambda: cubin


def _forget_calls() -> None:
    import sys

    # Without torch nothing has been called, and loading a folder need not import it.
    calls = sys.modules.get("flashgen.calls")
    if calls is not None:
        calls.forget_calls()
