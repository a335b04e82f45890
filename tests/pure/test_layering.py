"""Who includes and imports whom: one way only, and the generator never sees torch or CUDA."""

from __future__ import annotations

import ast
import graphlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
FLASHGEN, GENERATOR, TEMPLATES = ROOT / "flashgen", ROOT / "generator", ROOT / "templates"
INCLUDE = TEMPLATES / "include" / "flashgen"

GENERATOR_MAY_IMPORT = {"yaml", "jinja2", "pydantic"}
# Each may import from itself and from those before it. A new module takes its place here.
GENERATOR_LAYERS = (
    {"paths", "errors"},
    {"words", "yaml_nodes", "schema_values"},
    {"spec"},
    {"request"},
    {"schema", "schema_errors", "footprint"},
    {"swizzled"},
    {"feasibility", "cost", "backward_plan"},
    {"config", "backward_feasibility"},
    {"shipped"},
    {"candidates", "backward_planner"},
    {"plan"},
    {"render", "new", "explain", "search", "backward_search"},
    {"__init__"},
)
RUNTIME_LAYERS = (
    {"env", "errors", "files", "findings", "launchers", "memo", "params", "resources"},
    {"driver", "toolchain", "sass", "overlap"},
    {"tensormap", "loaded", "compiler", "outputs", "counters"},
    {"select", "launch", "cache", "cpu", "cpu_backward"},
    {"backward_geometry", "backward_launch", "backward_select"},
    {"calls", "kernel"},
    {"backward_calls"},
    {"callable_kernel", "artifacts", "workers"},
    {"backward_kernel"},
    {"loading", "build"},
    {"training"},
    {"ops", "bound"},
    {"testing", "cases", "guarded"},
    {"backward_cases", "testing_backward"},
    {"verify_backward"},
    {"bench_grid", "host_time", "peer_adapters", "peers", "panels", "plot"},
    {"bench_timing", "bench_backward", "bench_kernels"},
    {"bench"},
    {"verify", "receipts", "bench_document", "doctor"},
    {"tune_state", "tune_space"},
    {"tune_trials", "figures"},
    {"tune"},
    {"tune_gpu", "tune_report"},
    {"__init__"},
    {"cli"},
    {"__main__"},
)
# Header folder -> the folders it may include.
HEADER_LAYERS = {
    "common": {"common"},
    "attention": {"common", "attention"},
    "fa2": {"common", "attention", "fa2"},
    "fa3": {"common", "attention", "fa3"},
}


def imports(path: Path, package: str) -> set[str]:
    """Every module a file imports, anywhere in it, as absolute names; ``package`` is the one the file lies in."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"), str(path))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*parts, *([node.module] if node.module else [])])
            found |= {f"{base}.{alias.name}" for alias in node.names} | {base}
    return found


def modules(folder: Path) -> dict[str, Path]:
    return {path.stem: path for path in sorted(folder.glob("*.py"))}


def rank(layers: tuple[set[str], ...], name: str) -> int:
    places = [index for index, names in enumerate(layers) if name in names]
    assert len(places) == 1, f"{name} has no place among the layers of {Path(__file__).name}: give it one"
    return places[0]


def siblings(found: set[str], package: str, names: set[str]) -> set[str]:
    """The modules of a package among the imported names; the package itself counts as its ``__init__``."""
    inner = {name.removeprefix(f"{package}.").split(".")[0] for name in found if name.startswith(f"{package}.")}
    # `from package import name` leaves the bare package behind: only a name that is no module needs its __init__.
    bare = package in found and bool(inner - names)
    return (inner & names) | ({"__init__"} if bare else set())


@pytest.mark.parametrize("name", modules(GENERATOR))
def test_generator_imports_only_lower_modules_and_no_cuda(name: str) -> None:
    found = imports(GENERATOR / f"{name}.py", "flashgen.generator")
    outside = {module.split(".")[0] for module in found if not module.startswith("flashgen.generator")}
    assert outside <= set(sys.stdlib_module_names) | GENERATOR_MAY_IMPORT
    used = siblings(found, "flashgen.generator", set(modules(GENERATOR))) - {name}
    own = rank(GENERATOR_LAYERS, name)
    if name != "__init__":
        assert {other for other in used if rank(GENERATOR_LAYERS, other) > own} == set()


@pytest.mark.parametrize("name", modules(FLASHGEN))
def test_runtime_imports_only_lower_modules(name: str) -> None:
    names = set(modules(FLASHGEN)) | {"cli"}
    found = {n for n in imports(FLASHGEN / f"{name}.py", "flashgen") if not n.startswith("flashgen.generator")}
    own = rank(RUNTIME_LAYERS, name)
    if name == "__init__":
        assert "cli" not in siblings(found, "flashgen", names)
        return
    used = siblings(found, "flashgen", names) - {name}
    assert {other for other in used if rank(RUNTIME_LAYERS, other) > own} == set()


@pytest.mark.parametrize("package", ["flashgen", "flashgen.generator", "flashgen.cli"])
def test_no_import_cycle(package: str) -> None:
    folder = {"flashgen": FLASHGEN, "flashgen.generator": GENERATOR, "flashgen.cli": FLASHGEN / "cli"}[package]
    names = set(modules(folder))
    graph = {
        name: siblings(imports(path, package), package, names) - {name, "__init__"}
        for name, path in modules(folder).items()
    }
    order = list(graphlib.TopologicalSorter(graph).static_order())
    assert set(order) == names


def test_command_line_holds_no_pointer_and_no_compiler() -> None:
    """The command line is thin, and ``--help`` is quick: it never touches CUDA, and no torch before a command runs."""
    for path in sorted((FLASHGEN / "cli").glob("*.py")):
        outside = {name.split(".")[0] for name in imports(path, "flashgen.cli")}
        assert not outside & {"cuda", "ctypes"}, path.name
    program = "import sys, flashgen.cli.app; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def headers() -> list[Path]:
    return sorted(path for path in INCLUDE.rglob("*") if path.suffix in (".h", ".cuh"))


@pytest.mark.parametrize("header", headers(), ids=lambda path: path.relative_to(INCLUDE).as_posix())
def test_header_includes_only_lower_folders(header: Path) -> None:
    text = header.read_text("utf-8")
    assert text.startswith("#pragma once")
    folder = header.relative_to(INCLUDE).parts[0]
    used = re.findall(r'^\s*#\s*include\s*[<"]([^">]+)[>"]', text, re.MULTILINE)
    inner = [name for name in used if name.startswith("flashgen/")]
    assert {name.split("/")[1] for name in inner} <= HEADER_LAYERS[folder]
    assert [name for name in inner if not (TEMPLATES / "include" / name).is_file()] == []
    outside = {name.split("/")[0] for name in used if not name.startswith("flashgen/")}
    assert outside <= {"cute", "cutlass", "cuda"}, "headers are spelled <flashgen/...>, <cute/...> or <cutlass/...>"


def test_importing_flashgen_is_free(tmp_path: Path) -> None:
    """No folder, no environment variable of ours, no torch, no CUDA."""
    program = f"""
import os, sys
sys.path.insert(0, {str(ROOT)!r})
class Watched(dict):
    read = set()
    def __getitem__(self, key):
        self.read.add(key)
        return super().__getitem__(key)
    def get(self, key, default=None):
        self.read.add(key)
        return super().get(key, default)
os.environ = Watched(os.environ)
import flashgen, flashgen.env, flashgen.errors
assert not [key for key in Watched.read if key.startswith("FLASHGEN")], Watched.read
print(sorted({{name.split(".")[0] for name in sys.modules}} & {{"torch", "cuda", "typer", "numpy"}}))
"""
    environment = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr
    assert list(tmp_path.iterdir()) == []


def test_no_module_hides_a_public_name() -> None:
    # `import flashgen.name` sets the attribute `name` of the package: it must not be a function's that callers use.
    modules = {path.stem for path in (ROOT / "flashgen").glob("*.py")}
    import flashgen

    assert modules & set(flashgen.__all__) == set()
