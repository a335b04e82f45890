"""The command line, ``flashgen``. It is thin: what a command does lies in the generator and the runtime."""

from __future__ import annotations


def main() -> None:
    """The console script; typer and the commands are imported here, so that importing the package costs nothing."""
    from flashgen.cli.app import main

    main()


__all__ = ["main"]
