"""``flashgen cache``: the kernels compiled on first use."""

from __future__ import annotations

import typer

from flashgen.cli import shared

cache = typer.Typer(no_args_is_help=True, rich_markup_mode="markdown")


@cache.command()
def show(as_json: shared.Json = False) -> None:
    """List the kernels kept, with their size and how long they took to compile."""
    from flashgen import env
    from flashgen.cache import cubin_cache

    entries = cubin_cache().entries()
    if as_json:
        shared.print_json({"folder": env.cache_dir(), "kernels": entries})
        return
    total = sum(entry.get("bytes", 0) for entry in entries)
    shared.out.print(f"{env.cache_dir()}: {len(entries)} kernels, {total / 2**20:.1f} MiB", soft_wrap=True)
    if entries:
        rows = (
            (e["name"], f"{e['bytes'] / 1024:.0f} KiB", f"{e['seconds']:.1f} s", e["sha256"][:12])
            for e in sorted(entries, key=lambda e: str(e["name"]))
        )
        shared.print_table(None, ("kernel ", "size", "compiled in", "sha256 "), rows)


@cache.command()
def clear() -> None:
    """Remove the kernels kept. They are compiled again when they are needed."""
    from flashgen import env
    from flashgen.cache import cubin_cache

    count = len(cubin_cache().entries())
    cubin_cache().clear()
    typer.echo(f"removed {count} kernels from {env.cache_dir()}")


@cache.command()
def path() -> None:
    """Print the cache's folder."""
    from flashgen import env
    from flashgen.errors import ToolchainError

    folder = env.cache_dir()
    if folder is None:
        raise ToolchainError(f"there is no home folder to keep kernels in: set {env.CACHE_DIR.name} to a folder")
    typer.echo(folder)
