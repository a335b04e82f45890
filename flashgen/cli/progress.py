"""How far long work has come, on stderr: a bar on a terminal, a line for each step elsewhere."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from flashgen.cli import shared

Step = Callable[[int, str], None]  # (how many are done, what was done last)


@contextlib.contextmanager
def progress(what: str, total: int) -> Iterator[Step]:
    """Give the function to call after each step."""
    if not shared.err.is_terminal:
        yield lambda done, last: shared.err.print(f"[{done}/{total}] {last}", markup=False, soft_wrap=True)
        return
    columns = (
        TextColumn(what),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[last]}"),
    )
    with Progress(*columns, console=shared.err, transient=True) as bar:
        task = bar.add_task(what, total=total, last="")
        yield lambda done, last: bar.update(task, completed=done, last=last)
