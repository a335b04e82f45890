"""``flashgen tune --compile-only``: the candidates into the cache, for a machine without a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from flashgen.cli import shared
from flashgen.cli.progress import progress
from flashgen.cli.tune_problems import Problem

if TYPE_CHECKING:
    from flashgen.build import BuildResult
    from flashgen.tune import Options


def compile_only(problems: list[Problem], options: Options, jobs: int | None, as_json: bool) -> None:
    """Compile what a search may want, and list what is feasible and what may be shipped. 1 when nothing may."""
    from flashgen.generator import plan_forward
    from flashgen.tune import blind, incumbent_of
    from flashgen.tune_gpu import build_plans

    documents: list[dict[str, Any]] = []
    fit = True
    for problem in problems:
        incumbents = [incumbent_of(problem.spec, shape.seqlen_k) for shape in problem.shapes]
        seeds = [*incumbents, *(plan_forward(problem.spec, request) for request in problem.seeds)]
        plans = blind(problem.spec, seeds, options)
        try:
            with progress("compiling", len(plans)) as step:
                result = build_plans(plans, jobs, step)
        except KeyboardInterrupt:
            shared.print_error("interrupted: what was compiled is in the cache; the same command goes on from there")
            raise typer.Exit(shared.INTERRUPTED) from None
        rows = _rows(result)
        fit = fit and any(row["shippable"] for row in rows)
        documents.append({"name": problem.spec.name, "plans": rows})
    if as_json:
        shared.print_json(documents)
    else:
        for document in documents:
            _show(document["name"], document["plans"])
    raise typer.Exit(0 if fit else shared.FAILED)


def _rows(result: BuildResult) -> list[dict[str, Any]]:
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
    ]
    failures = [
        {
            "plan": entry.origin,
            "request": entry.request.explicit,
            "shippable": False,
            "complaints": [str(error).splitlines()[0]],
        }
        for entry, error in result.failed
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
