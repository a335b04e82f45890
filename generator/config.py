"""YAML to entries: every document is a sweep, every combination of its lists one kernel."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, fields
from math import prod
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from yaml import MappingNode, Node, SequenceNode

from . import paths
from .errors import ConfigError, FlashgenError, closest
from .request import AnyRequest, BackwardRequest, PlanRequest
from .schema import LIST_KEYS, KernelConfig, foreign_keys, kernel_keys
from .schema_errors import first_error
from .schema_values import HeadDim, Registers, Swizzle, Tile
from .spec import Arch, KernelSpec, Op, default_schedule, word
from .yaml_nodes import MAX_BYTES, documents, entries, locate, plain, position

MAX_KERNELS = 4096


@dataclass(frozen=True)
class ConfigEntry:
    """One kernel that a config asks for, and where: ``configs/sm90/attention_fwd_d128.yaml:2``.

    ``places`` has the position of every key, for errors that come up later.
    """

    spec: KernelSpec
    request: AnyRequest
    origin: str
    places: dict[str, str] = field(default_factory=dict, compare=False, repr=False)


def load_config(source: str | Path, *, origin: str | None = None) -> list[ConfigEntry]:
    """Every kernel of a YAML file or text, in order.

    A Path is a file; a str is text when it has a line break or a ``key: value`` in it, else a file's name. ``origin``
    names the source in messages. Raises ConfigError, PlanError or NotAvailableError, with file and line.
    """
    if isinstance(source, Path) or (source.strip() and "\n" not in source and ": " not in source):
        text, label = _read(Path(source)), origin or _label(Path(source))
    else:
        text, label = source, origin or "(text)"
    found: dict[KernelSpec, ConfigEntry] = {}
    for document in documents(text, label):
        for entry in _sweep(document, label):
            first = found.setdefault(entry.spec, entry)
            if first is not entry:
                raise ConfigError(f"{entry.origin}: {entry.spec.name} is given twice, first at {first.origin}")
    return list(found.values())


def shipped_configs(arch: str | None = None) -> list[Path]:
    """The YAML files that ship, sorted; of one arch when it is named."""
    folder = "*" if arch is None else word(Arch, arch, "arch").removesuffix("a")
    return sorted(paths.CONFIGS.glob(f"{folder}/*.yaml"))


def _read(path: Path) -> str:
    label = _label(path)
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        near = closest(path.name, [p.name for p in path.parent.glob("*.y*ml")]) if path.parent.is_dir() else ""
        raise ConfigError(f"{label}: no such file{near}") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{label}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if len(data) > MAX_BYTES:
        raise ConfigError(f"{label}: the file is larger than {MAX_BYTES} bytes, the limit for a config")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{label}:{data.count(10, 0, error.start) + 1}: not UTF-8 text") from None


def _label(path: Path) -> str:
    """A shipped file by its place in the project, any other as it was given."""
    try:
        return (Path("configs") / path.resolve().relative_to(paths.CONFIGS)).as_posix()
    except (ValueError, OSError):
        return str(path)


def _sweep(document: MappingNode, label: str) -> list[ConfigEntry]:
    axes: list[list[tuple[str, Node]]] = []
    for key, (_, value) in entries(document, label).items():
        swept = isinstance(value, SequenceNode) and key in KernelConfig.model_fields
        if swept and key in LIST_KEYS:
            swept = bool(value.value) and all(isinstance(item, SequenceNode) for item in value.value)
        if swept and not value.value:
            raise ConfigError(f"{position(label, value)}: {key}: the sweep is empty; legal: one value or more")
        axes.append([(key, item) for item in value.value] if swept else [(key, value)])
    count = prod(len(axis) for axis in axes)
    if count > MAX_KERNELS:
        raise ConfigError(f"{position(label, document)}: the sweep makes {count} kernels; the limit is {MAX_KERNELS}")
    return [_entry(document, dict(point), label) for point in itertools.product(*axes)]


def _entry(document: MappingNode, point: dict[str, Node], label: str) -> ConfigEntry:
    data = {key: plain(node, label) for key, node in point.items()}
    try:
        config = KernelConfig.model_validate(data)
    except ValidationError as error:
        path, message = first_error(error, data)
        node = locate(point[str(path[0])], path[1:]) if path else document
        raise ConfigError(f"{position(label, node)}: {message}") from None
    places = {key: position(label, node) for key, node in point.items()}
    origin = position(label, document)
    try:
        for key in point:
            if key in foreign_keys(config.kernel):
                legal = kernel_keys(config.kernel)
                text = f"got {key}, which is no key of {config.kernel}; legal: {', '.join(legal)}{closest(key, legal)}"
                raise ConfigError(text, key=key)
        return ConfigEntry(_spec(config), _request(config), origin, places)
    except FlashgenError as error:
        raise error.at(places.get(error.key or "", origin)) from None


def _spec(config: KernelConfig) -> KernelSpec:
    dims = config.head_dim if isinstance(config.head_dim, HeadDim) else HeadDim(qk=config.head_dim, v=config.head_dim)
    schedule = default_schedule(config.arch) if config.schedule == "auto" else config.schedule
    features = tuple(feature.value for feature in config.features)
    return KernelSpec(
        config.kernel, schedule, config.arch, config.dtype, dims.qk, dims.v, config.mask, features,
        config.keys.first, config.keys.below,
    )  # fmt: skip


def _request(config: KernelConfig) -> AnyRequest:
    def chosen(key: str) -> Any:
        value = getattr(config, key)
        return None if value == "auto" else value

    tile: Tile | None = chosen("tile")
    registers: Registers | None = chosen("registers")
    swizzle: Swizzle | None = chosen("swizzle")
    kind = BackwardRequest if config.kernel is Op.attention_bwd else PlanRequest
    plain_keys = [f.name for f in fields(kind) if f.name in KernelConfig.model_fields]
    return kind(
        block_m=tile.m if tile else None,
        block_n=tile.n if tile else None,
        consumer_warpgroups=chosen("warpgroups"),
        producer_registers=registers.producer if registers else None,
        consumer_registers=registers.consumer if registers else None,
        swizzle_qk=swizzle.qk if swizzle else None,
        swizzle_v=swizzle.v if swizzle else None,
        **{key: chosen(key) for key in plain_keys},
    )
