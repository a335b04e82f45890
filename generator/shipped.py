"""The tiles that ship: the tuned choices of a spec, read from the one config file that is named after it."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from . import paths
from .config import load_config
from .request import PlanRequest
from .spec import KernelSpec


def shipped_path(spec: KernelSpec) -> Path:
    """Where the shipped config of a spec lies, whether or not it exists: ``configs/sm90/attention_fwd_d128.yaml``."""
    return paths.CONFIGS / spec.arch.removesuffix("a") / f"{spec.op}_{spec.head_dim_name}.yaml"


def shipped_request(spec: KernelSpec) -> PlanRequest | None:
    """The shipped choices of a spec, or None when no config ships for it."""
    path = shipped_path(spec)
    try:
        stamp = path.stat().st_mtime_ns
    except FileNotFoundError:
        return None
    return _requests(path, stamp).get(spec)


@lru_cache(maxsize=64)
def _requests(path: Path, _stamp: int) -> dict[KernelSpec, PlanRequest]:
    return {entry.spec: entry.request for entry in load_config(path)}
