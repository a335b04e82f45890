"""The command line in this process."""

from __future__ import annotations

from collections.abc import Callable

from typer.testing import CliRunner, Result

from flashgen.cli.app import app

Run = Callable[..., Result]


def run_command(*words: object) -> Result:
    """What ``flashgen WORDS`` prints and ends with."""
    return CliRunner().invoke(app, [str(word) for word in words])
