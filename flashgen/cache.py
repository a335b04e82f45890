"""Cubins kept on disk between processes: one compile per key, however many processes ask at once.

The folder holds ``entries/`` (raw cubins, cuda.core's ``FileStreamProgramCache``), ``facts/`` (a JSON file a kernel:
name, sha256 of the cubin, resources), ``locks/`` and ``failed/``. Nothing that happens to it makes a call fail: what
cannot be read, or does not match its sha256, is compiled again; what cannot be written stays in this process.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flashgen import env
from flashgen.compiler import Compiled, compile_source, options
from flashgen.errors import CompileError
from flashgen.files import locked, write_atomic
from flashgen.resources import Resources
from flashgen.toolchain import Toolchain, is_current

if TYPE_CHECKING:
    from cuda.core.utils import FileStreamProgramCache

MAX_BYTES = 4 << 30  # least recently read cubins go first
LOCK_TIMEOUT = 300.0  # seconds after which a lock's holder is taken for stuck and the kernel compiled anyway


@dataclass(frozen=True)
class Cached:
    """A cubin with its facts; ``cached`` is False when this call compiled it."""

    cubin: bytes
    sha256: str
    resources: Resources
    seconds: float
    cached: bool


Compiler = Callable[[str, str, str, Toolchain], Compiled]


class CubinCache:
    """The kernels compiled on first use, in ``folder``; without one (None) they live as long as the process.

    Safe to use from several threads and processes at once.
    """

    def __init__(self, folder: Path | None, compiler: Compiler = compile_source) -> None:
        self.folder = folder
        self._compiler = compiler
        self._failures: dict[str, CompileError] = {}
        self._unsaved: dict[str, Cached] = {}
        self._key_locks: dict[str, threading.Lock] = {}
        self._warned = False
        self._lock = threading.Lock()
        self._opened: FileStreamProgramCache | None = None

    def key(self, source: str, name: str, arch: str, toolchain: Toolchain) -> str:
        """Hex digest of everything that decides the cubin's bytes, and of no path: a cache can be copied."""
        from cuda.core.utils import make_program_cache_key

        # The folders of headers are part of the option bytes, so they stay out; the digest of their content stands in.
        digest = f"{toolchain.nvrtc_version} {toolchain.header_digest}".encode()
        made = make_program_cache_key(
            code=source, code_type="c++", options=options(name, arch), target_type="cubin", extra_digest=digest
        )
        return hashlib.sha256(made).hexdigest()

    def get(self, key: str) -> Cached | None:
        """The entry of a key, or None when there is no sound one."""
        if key in self._unsaved:
            return self._unsaved[key]
        store = self._store()
        if store is None:
            return None
        try:
            facts = json.loads(self._facts(key).read_text())
            cubin = store[key.encode()]
            resources, seconds = Resources.from_dict(facts["resources"]), float(facts["seconds"])
            if hashlib.sha256(cubin).hexdigest() != facts["sha256"]:
                raise ValueError("the cubin's sha256 differs")
            return Cached(cubin, facts["sha256"], resources, seconds, cached=True)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            env.logger().info("cache entry %s is not sound (%r): compiling again", key[:12], error)
            return None

    def get_or_compile(self, source: str, name: str, arch: str, toolchain: Toolchain) -> Cached:
        """The entry of this source, compiled when there is none. A failure is remembered and raised again."""
        key = self.key(source, name, arch, toolchain)
        if found := self.get(key):
            return found
        with self._locked(key):
            if key in self._failures:
                raise self._failures[key].with_traceback(None)
            if found := self.get(key):  # another process compiled it while this one waited
                return found
            env.logger().info("compiling %s", name)
            try:
                compiled = self._compiler(source, name, arch, toolchain)
            except CompileError as error:
                if is_current(toolchain):
                    self._failures[key] = error
                raise
            env.logger().info("compiled %s in %.1f s", name, compiled.seconds)
            sha256 = hashlib.sha256(compiled.cubin).hexdigest()
            made = Cached(compiled.cubin, sha256, compiled.resources, compiled.seconds, cached=False)
            if is_current(toolchain):
                self._save(key, name, arch, made)
            return made

    def entries(self) -> list[dict[str, Any]]:
        """Facts of every kernel kept: name, arch, sha256, resources, seconds, bytes."""
        found = []
        for path in sorted((self.folder / "facts").glob("*.json")) if self.folder else []:
            with contextlib.suppress(OSError, ValueError):
                found.append(json.loads(path.read_text()))
        return found

    def clear(self) -> None:
        """Forget every kernel, on disk and in this process."""
        self._unsaved.clear()
        self._failures.clear()
        for part in ("entries", "facts", "failed") if self.folder else ():
            shutil.rmtree(self.folder / part, ignore_errors=True)  # type: ignore[operator]
        self._opened = None

    def _facts(self, key: str) -> Path:
        assert self.folder is not None
        return self.folder / "facts" / f"{key}.json"

    def _store(self) -> FileStreamProgramCache | None:
        """cuda.core's cache in the folder, or None when it cannot even be opened."""
        if self.folder is None:
            return None
        with self._lock:
            if self._opened is None:
                from cuda.core.utils import FileStreamProgramCache

                try:
                    self._opened = FileStreamProgramCache(self.folder, max_size_bytes=MAX_BYTES)
                except OSError as error:
                    self._warn(error)
            return self._opened

    def _save(self, key: str, name: str, arch: str, made: Cached) -> None:
        try:
            store = self._store()
            if store is None or self.folder is None:
                self._unsaved[key] = replace(made, cached=True)
                return
            facts: dict[str, Any] = {"name": name, "arch": arch, "sha256": made.sha256, "bytes": len(made.cubin)}
            facts |= {"seconds": round(made.seconds, 3), "resources": made.resources.to_dict()}
            # Facts last: an entry counts only once they name the sha256 of a cubin that is there.
            store[key.encode()] = made.cubin
            write_atomic(self._facts(key), json.dumps(facts, indent=1).encode())
        except OSError as error:
            self._warn(error)
            self._unsaved[key] = replace(made, cached=True)

    def _warn(self, error: OSError) -> None:
        if not self._warned:
            self._warned = True
            env.logger().warning(
                "cannot keep compiled kernels in %s (%s): each process compiles its own; set %s to a writable folder",
                self.folder, error.strerror or error, env.CACHE_DIR.name,
            )  # fmt: skip

    @contextlib.contextmanager
    def _locked(self, key: str) -> Iterator[None]:
        """Hold the key's lock across threads and, where the folder takes locks, across processes."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._key_locks.setdefault(key, threading.Lock()))
            if self._store() is not None and self.folder is not None:
                with contextlib.suppress(OSError):
                    (self.folder / "locks").mkdir(exist_ok=True)
                    if not stack.enter_context(locked(self.folder / "locks" / key, LOCK_TIMEOUT)):
                        env.logger().warning("another process compiles %s for long: compiling it too", key[:12])
            yield


_caches: dict[Path | None, CubinCache] = {}


def cubin_cache() -> CubinCache:
    """This process's cache of the folder that FLASHGEN_CACHE_DIR names now."""
    folder = env.cache_dir()
    if folder not in _caches:
        _caches.setdefault(folder, CubinCache(folder))
    return _caches[folder]
