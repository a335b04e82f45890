"""Measured figures: bound to a plan, read from bench documents and a tuner's state, and what ships of them."""

from __future__ import annotations

import json
import runpy
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from flashgen.bench import Row
from flashgen.bench_grid import Shape
from flashgen.errors import ArtifactError
from flashgen.figures import Measured, from_document, of_plan, read_file, shipped, write_measured
from flashgen.generator import AnyPlan, KernelSpec, PlanRequest, plan
from flashgen.tune_state import Measurement, TuneState, time_key

BENCHMARKS = Path(__file__).resolve().parent.parent.parent / "benchmarks"
SPEC = KernelSpec.forward(head_dim=72)
PLAN = plan(SPEC, PlanRequest(block_m=128, block_n=128))
OTHER = plan(SPEC, PlanRequest(block_m=128, block_n=64))
LONG, SHORT = "fwd d72 full B4 H16 S4096", "fwd d72 full B32 H16 S512"


def row(shape: str, implementation: str = "flashgen", made: AnyPlan | None = PLAN, sha256: str | None = "c0de") -> Row:
    bare = Row(shape, implementation, 1.0, 0.1, 494.72, 1.2, 1.1, 0.0)
    return bare if made is None else replace(bare, kernel=made.name, plan=made.request.explicit, sha256=sha256)


def document(*rows: Row, **other: Any) -> dict[str, Any]:
    about = {"gpu": "NVIDIA H200", "nvrtc": "13.0.88", "date": "2026-11-30", "matrix_product_tflops": 775.0}
    return json.loads(json.dumps(about | {"rows": [asdict(each) for each in rows]} | other))


def test_a_document_tells_of_the_kernels_that_ran() -> None:
    (found,) = from_document(document(row(LONG), row(SHORT), row(LONG, "cudnn", None), row(LONG, sha256=None)))
    assert found == Measured(
        PLAN.name, PLAN.request.explicit, "c0de", "NVIDIA H200", "nvrtc 13.0.88", "2026-11-30", 775.0,
        {LONG: 494.7, SHORT: 494.7},
    )  # fmt: skip
    assert found.peak_tflops == pytest.approx(989.4, abs=0.1)
    assert replace(found, gpu="NVIDIA GH200").peak_tflops is None, "another clock: not known here"
    assert from_document(document(row(LONG, made=None))) == [], "an older document names no kernel"


def test_figures_are_of_one_plan_and_of_the_keys_it_is_meant_for() -> None:
    measured = from_document(document(row(LONG), row(SHORT)))
    assert of_plan(PLAN, measured) == measured
    assert of_plan(OTHER, measured) == []
    ranged = replace(PLAN, spec=replace(SPEC, keys_from=1024))
    (kept,) = of_plan(ranged, measured)
    assert list(kept.shapes) == [LONG], "a plan that was timed before it had a range"
    assert of_plan(replace(PLAN, spec=replace(SPEC, keys_from=8192)), measured) == []
    of_range = from_document(document(row(LONG, made=ranged)))
    assert of_plan(PLAN, of_range) == [], "a range's kernel is not that of every length"


def test_a_tuners_state_tells_the_latest_time(tmp_path: Path) -> None:
    state = TuneState(tmp_path / "tune.jsonl")
    shape = Shape.from_name(LONG)
    for rival, milliseconds in (("a", 3.0), ("b", 2.0)):
        key = time_key(PLAN, LONG, "c0de", "NVIDIA H100 80GB HBM3", rival, 20)
        state.add_time(key, Measurement(milliseconds, 0.1, 2.5, None))
    state.add_verdict({"kernel": PLAN.name}, "")
    with (tmp_path / "tune.jsonl").open("a") as file:
        file.write('[]\n{"what": "time", "key": 1, "value": {}}\n{"what": "ti')
    (found,) = read_file(tmp_path / "tune.jsonl")
    assert found.shapes == {LONG: round(shape.flop / 2e-3 / 1e12, 1)}
    assert (found.gpu, found.compiler, found.sha256) == ("NVIDIA H100 80GB HBM3", "", "c0de")
    assert of_plan(PLAN, [found]) == [found]


def test_the_file_that_ships_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "measured.json"
    assert shipped(path) == []
    later = replace(from_document(document(row(LONG)))[0], sha256="1a7e")
    measured = [*from_document(document(row(LONG), row(SHORT, made=plan(SPEC.backward_of())))), later]
    write_measured(measured, path)
    assert shipped(path) == sorted([measured[1], later], key=lambda each: each.kernel)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"rows": [{"kernel": "a", "sha256": "b"}]}', '{"schema": 2, "kernels": {}}',
     '{"schema": 1, "kernels": {"a": {"plan": {}}}}'],
)  # fmt: skip
def test_what_holds_no_figures_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(ArtifactError, match=r"x\.json holds no measured figures"):
        read_file(tmp_path / "x.json")
    with pytest.raises(ArtifactError, match=r"cannot read .*none\.json"):
        read_file(tmp_path / "none.json")


@pytest.fixture
def shipped_figures() -> Callable[[list[Path]], tuple[list[Measured], list[str]]]:
    return runpy.run_path(str(BENCHMARKS / "measured.py"))["shipped_figures"]


def test_figures_of_another_plan_than_ships_are_left_out(shipped_figures: Any, tmp_path: Path) -> None:
    ships = plan(KernelSpec.forward(head_dim=80))
    assert ships.origin == "shipped"
    stale = replace(ships, stages_q=3 - ships.stages_q)
    gone = plan(KernelSpec.forward(head_dim=8))
    (tmp_path / "host.json").write_text("[]")
    (tmp_path / "a.json").write_text(json.dumps(document(row("fwd d80 full B4 H16 S4096", made=ships))))
    (tmp_path / "b.json").write_text(json.dumps(document(row(LONG, made=gone), row(LONG, made=stale, sha256="01d"))))
    kept, left_out = shipped_figures(sorted(tmp_path.glob("*.json")))
    assert ([each.kernel for each in kept], left_out) == ([ships.name], [gone.name])
    kept, left_out = shipped_figures([tmp_path / "b.json"])
    assert (kept, left_out) == ([], sorted([gone.name, ships.name]))


def test_what_ships_is_what_the_benchmarks_measured(shipped_figures: Any) -> None:
    """Of the kernels that still have the plan that ran: ``make figures`` is due when this fails."""
    paths = sorted(BENCHMARKS.glob("*.json"))
    documents = [json.loads(path.read_text()) for path in paths]
    measured = [each for one in documents if isinstance(one, dict) for each in from_document(one)]
    assert all(each in measured for each in shipped())
    assert all(each in shipped() for each in shipped_figures(paths)[0])
