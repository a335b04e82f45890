"""Worker processes that build kernels, one kernel each at a time.

Processes and not threads: two threads of one process share NVRTC's locks and use little more than one core, and a
process can be stopped in the middle of a compilation (Ctrl-C) or die in it without harm to the others.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

from flashgen.compiler import reuse_headers
from flashgen.errors import CompileError, FlashgenError
from flashgen.generator import ConfigEntry
from flashgen.kernel import BuiltKernel, build_kernel


@dataclass(frozen=True)
class Outcome:
    """What became of one entry: a kernel or an error. A kernel that must not be shipped has both when that is asked."""

    entry: ConfigEntry
    built: BuiltKernel | None = None
    error: FlashgenError | None = None


def compiled(entries: list[ConfigEntry], jobs: int) -> Generator[Outcome]:
    """Outcomes of the entries, as the workers finish them."""
    waiting: queue.SimpleQueue[ConfigEntry] = queue.SimpleQueue()
    done: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
    for entry in entries:
        waiting.put(entry)
    with tempfile.TemporaryDirectory(prefix="flashgen-build-") as scratch:
        # Parsed headers pay from a worker's second kernel on.
        reuse = scratch if len(entries) > jobs else ""
        workers = [_Worker(reuse) for _ in range(min(jobs, len(entries)))]
        for worker in workers:
            threading.Thread(target=worker.drain, args=(waiting, done), daemon=True).start()
        try:
            for _ in entries:
                yield done.get()
        finally:
            for worker in workers:
                worker.stop()


class _Worker:
    """A process that builds the entries it is sent, one at a time."""

    def __init__(self, scratch: str) -> None:
        self._scratch = scratch
        self._stopped = False
        self._process = self._start()

    def drain(self, waiting: queue.SimpleQueue[ConfigEntry], done: queue.SimpleQueue[Outcome]) -> None:
        """Build what waits until nothing does; a process that dies fails its entry alone and is replaced."""
        with contextlib.suppress(queue.Empty):
            while not self._stopped:
                entry = waiting.get_nowait()
                questions, answers = self._process.stdin, self._process.stdout
                assert questions is not None and answers is not None  # noqa: PT018
                try:
                    pickle.dump(entry, questions)
                    questions.flush()
                    done.put(pickle.load(answers))
                except Exception as error:  # whatever it was: without an outcome its reader would wait for ever
                    if isinstance(error, (OSError, EOFError)):
                        code = self._process.wait()
                        how = f"signal {-code}" if code < 0 else f"exit code {code}"
                        text = f"the compiler's process died ({how}): with little memory, ask for fewer jobs"
                    else:
                        self._process.kill()
                        self._process.wait()
                        text = f"the compiler's process gave no answer that can be read ({error!r})"
                    done.put(Outcome(entry, error=CompileError(f"{entry.spec.name}: {text}")))
                    if not self._stopped:
                        self._process = self._start()

    def stop(self) -> None:
        self._stopped = True
        self._process.kill()
        self._process.wait()

    def _start(self) -> subprocess.Popen[bytes]:
        # Not multiprocessing: it would import the caller's main module again. A session of its own keeps Ctrl-C from
        # the worker: it is for this process to decide.
        return subprocess.Popen(
            [sys.executable, "-c", f"from flashgen.workers import work; work({self._scratch!r})"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # The same modules as here, also from an uninstalled checkout.
            env=os.environ | {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)},
            start_new_session=True,
        )


def work(scratch: str) -> None:
    """A worker's life: read an entry from stdin, write its outcome to stdout, until stdin ends.

    It keeps parsed headers in ``scratch``, unless that is empty.
    """
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints must not get between the answers
    with contextlib.suppress(EOFError, BrokenPipeError), contextlib.ExitStack() as stack:
        if scratch:  # a folder of its own, which it removes itself should its parent be killed
            reuse_headers(Path(stack.enter_context(tempfile.TemporaryDirectory(dir=scratch))))
        while True:
            entry: ConfigEntry = pickle.load(sys.stdin.buffer)
            try:
                outcome = Outcome(entry, build_kernel(entry.spec, entry.request, origin=entry.origin))
            except FlashgenError as error:
                outcome = Outcome(entry, error=error)
            except Exception as error:
                text = f"{entry.spec.name}: {type(error).__name__}: {error}"
                outcome = Outcome(entry, error=CompileError(text, traceback.format_exc()))
            pickle.dump(outcome, answers)
            answers.flush()
