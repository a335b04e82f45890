"""``flashgen tune --compile-only``: the candidates into the cache, for a machine without a GPU."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import typer

from flashgen.cli import shared
from flashgen.cli.progress import progress
from flashgen.cli.tune_problems import Problem

if TYPE_CHECKING:
    from flashgen.bench_grid import Shape
    from flashgen.build import BuildResult
    from flashgen.generator import AnyPlan, Op
    from flashgen.tune_space import Options


def compile_only(problems: list[Problem], options: Options, jobs: int | None, as_json: bool) -> None:
    """Compile what a search may want, and list what is feasible and what may be shipped. 1 when nothing may."""
    from flashgen.generator import plan
    from flashgen.tune_gpu import build_plans
    from flashgen.tune_space import blind, incumbent_of

    documents: list[dict[str, Any]] = []
    fit = True
    for problem in problems:
        incumbents = [incumbent_of(problem.spec, shape.seqlen_k) for shape in problem.shapes]
        seeds = [*incumbents, *(plan(problem.spec, request) for request in problem.seeds)]
        plans = [*blind(problem.spec, seeds, options), *_forwards(problem.shapes)]
        try:
            with progress("compiling", len(plans)) as step:
                result = build_plans(plans, jobs, step)
        except KeyboardInterrupt:
            shared.print_error("interrupted: what was compiled is in the cache; the same command goes on from there")
            raise typer.Exit(shared.INTERRUPTED) from None
        rows = _rows(result, problem.spec.op)
        fit = fit and any(row["shippable"] for row in rows)
        documents.append({"name": problem.spec.name, "plans": rows})
    if as_json:
        shared.print_json(documents)
    else:
        for document in documents:
            _show(document["name"], document["plans"])
    raise typer.Exit(0 if fit else shared.FAILED)


def _forwards(shapes: list[Shape]) -> list[AnyPlan]:
    """What a search runs beside its candidates: the forwards that backwards are timed over."""
    from flashgen.loading import kernel_for

    backwards = [shape for shape in shapes if shape.direction == "bwd"]
    plans = [kernel_for(replace(shape, direction="fwd").spec(), shape.seqlen_k).plan for shape in backwards]
    return list(dict.fromkeys(plans))


def _rows(result: BuildResult, op: Op) -> list[dict[str, Any]]:
    """Of the candidates, which are all of ``op``."""
    from flashgen.generator.search import label

    rows = [
        {
            "plan": label(built.plan),
            "request": built.plan.request.explicit,
            "sha256": built.sha256,
            "smem_bytes": built.plan.smem_bytes,
            "accumulator_registers": built.plan.accumulator_registers,
            "shippable": built.shippable,
            "complaints": list(built.resources.complaints),
        }
        for built in result.ok
        if built.plan.spec.op is op
    ]
    failures = [
        {
            "plan": entry.origin,
            "request": entry.request.explicit,
            "shippable": False,
            "complaints": [str(error).splitlines()[0]],
        }
        for entry, error in result.failed
        if entry.spec.op is op
    ]
    return sorted(rows, key=lambda row: (not row["shippable"], str(row["plan"]))) + failures


def _show(name: str, rows: list[dict[str, Any]]) -> None:
    cells = (
        (
            row["plan"],
            row.get("smem_bytes", "-"),
            row.get("accumulator_registers", "-"),
            "yes" if row["shippable"] else "; ".join(row["complaints"]),
        )
        for row in rows
    )
    shared.print_table(name, ("plan ", "shared memory", "accumulators", "shippable "), cells)
    right = sum(row["shippable"] for row in rows)
    shared.out.print(f"{right} of {len(rows)} feasible plans of {name} may be shipped", soft_wrap=True)
