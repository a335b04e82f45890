"""What the commands share: consoles, how errors end a command, and the kernels that arguments name."""

from __future__ import annotations

import contextlib
import fnmatch
import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from typer.core import TyperGroup

from flashgen.errors import ConfigError, FlashgenError, NotAvailableError, PlanError
from flashgen.generator import ConfigEntry, KernelSpec, load_config, paths, shipped_configs
from flashgen.generator.errors import closest

FAILED, USAGE, INTERRUPTED = 1, 2, 130
PIPE_WIDTH = 1000  # a table that a program reads is not folded

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)

Configs = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="CONFIG",
        help="YAML files, - for standard input, or names of shipped kernels (`*` and `?` match). None: all that ship.",
        show_default=False,
    ),
]
Arch = Annotated[str | None, typer.Option("--arch", metavar="ARCH", help="Only kernels of this arch, such as sm90a.")]
Only = Annotated[
    str | None, typer.Option("--only", metavar="GLOB", help="Only kernels whose name matches, such as `*_d64_*`.")
]
Jobs = Annotated[
    int | None, typer.Option("--jobs", "-j", metavar="N", min=1, help="Compilations at a time. None: one a core.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")]


class Commands(TyperGroup):
    """The command group: an error that flashgen raises on purpose ends it with one message and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command; 2 for a bad config or usage, 1 for what failed."""
        try:
            return super().invoke(ctx)
        except (typer.Exit, typer.Abort, BrokenPipeError):
            raise
        except KeyboardInterrupt:
            print_error("interrupted")
            raise typer.Exit(INTERRUPTED) from None
        except Exception as error:
            # Typer shows its own errors of usage, which know how.
            if ctx.params.get("debug") or hasattr(error, "show"):
                raise
            message, code = _ending(error)
            print_error(message)
            raise typer.Exit(code) from None


def _ending(error: Exception) -> tuple[str, int]:
    """The message and exit code that an error ends a command with."""
    if isinstance(error, FlashgenError):
        bad_input = isinstance(error, (ConfigError, PlanError, NotAvailableError))
        return str(error), USAGE if bad_input else FAILED
    if isinstance(error, OSError):
        return f"{error.filename or 'input or output'}: {error.strerror or error}", FAILED
    said = f"{type(error).__name__}: {error}"
    return f"{said}\nThis is a fault of flashgen's own; `flashgen --debug ...` shows where it happened", FAILED


def print_error(message: str) -> None:
    """An error on stderr, as it is: paths and logs are not wrapped and hold no markup."""
    err.print(f"error: {message}", style="red" if err.is_terminal else None, markup=False, soft_wrap=True)


def working(what: str) -> contextlib.AbstractContextManager[Any]:
    """A spinner on stderr while something takes long; nothing when stderr is no terminal."""
    return err.status(what) if err.is_terminal else contextlib.nullcontext()


def print_json(value: Any) -> None:
    """JSON on stdout, and nothing else there."""
    typer.echo(json.dumps(value, indent=2, default=str))


def print_table(title: str | None, columns: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    """A table without a frame. Columns whose name ends in a space stay left, numbers go right."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column.rstrip(), justify="left" if column.endswith(" ") else "right", overflow="fold")
    for row in rows:
        table.add_row(*(str(cell) for cell in row))
    (out if out.is_terminal else Console(width=PIPE_WIDTH, highlight=False)).print(table)


def entries_of(configs: list[str] | None, arch: str | None = None, only: str | None = None) -> list[ConfigEntry]:
    """The kernels that a command's arguments name, in order; ConfigError when they name none."""
    if configs:
        found = [entry for config in configs for entry in _entries(config)]
    else:
        found = _shipped()
    first: dict[str, ConfigEntry] = {}
    for entry in found:
        other = first.setdefault(entry.spec.name, entry)
        if other is not entry and other.origin != entry.origin:
            raise ConfigError(f"{entry.origin}: {entry.spec.name} is given twice, first at {other.origin}")
    kept = [entry for entry in first.values() if wanted(entry.spec, arch, only)]
    if not kept:
        archs = ", ".join(sorted({entry.spec.arch.value for entry in found}))
        wish = " and ".join(
            text for text in (f"--arch {arch}" if arch else "", f"--only {only!r}" if only else "") if text
        )
        near = closest(only or "", list(first))
        raise ConfigError(f"no kernel matches {wish}; got {len(first)} ({archs}), such as {next(iter(first))}{near}")
    return kept


def wanted(spec: KernelSpec, arch: str | None, only: str | None) -> bool:
    """Whether a kernel is one of those that --arch and --only pick."""
    return (arch is None or spec.arch.value == arch) and (only is None or _named(spec.name, only))


def _named(name: str, glob: str) -> bool:
    return fnmatch.fnmatchcase(name, glob)


def _shipped() -> list[ConfigEntry]:
    # d64 before d128: numbers in names count as numbers.
    files = sorted(shipped_configs(), key=lambda path: [int(part) if part.isdigit() else part for part in _parts(path)])
    return [entry for path in files for entry in load_config(path)]


def _parts(path: Path) -> list[str]:
    return re.split(r"(\d+)", str(path))


def _entries(config: str) -> list[ConfigEntry]:
    if config == "-":
        return load_config(sys.stdin.read() + "\n", origin="(standard input)")
    if Path(config).is_file() or config.endswith((".yaml", ".yml")) or "/" in config:
        path = Path(config)
        place = paths.CONFIGS.parent / path
        # Messages and sources name shipped configs as configs/sm90/...: that works from any folder.
        by_place = not path.exists() and path.parts[:1] == ("configs",) and place.is_file()
        return load_config(place if by_place else path)
    shipped = _shipped()
    # One problem may ship as several kernels, each for a range of keys: its own name means all of them.
    found = [entry for entry in shipped if _named(entry.spec.name, config) or entry.spec.any_length.name == config]
    if not found:
        near = closest(config, [entry.spec.name for entry in shipped])
        raise ConfigError(f"{config}: no file and no shipped kernel of that name{near}; `flashgen list` shows them")
    return found
