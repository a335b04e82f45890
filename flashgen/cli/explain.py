"""``flashgen explain``: what a plan chose and what it costs."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flashgen.cli import explain_measured, shared

if TYPE_CHECKING:
    from flashgen.generator import AnyPlan, ConfigEntry, Explanation
    from flashgen.kernel import BuiltKernel

MOST_FREQUENT = 12
# Worth seeing at any count: products, copies, exponentials, barriers, register moves between warpgroups, spills.
TOLD = ("HGMMA", "UTMALDG", "UTMASTG", "MUFU", "SYNCS", "WARPSYNC", "USETMAXREG", "STL", "LDL")


def explain(
    configs: shared.Configs = None,
    arch: shared.Arch = None,
    only: shared.Only = None,
    compile_it: Annotated[
        bool, typer.Option("--compile", help="Also compile what is not cached, and count instructions.")
    ] = False,
    figures: Annotated[
        list[Path] | None,
        typer.Option(
            "--figures", metavar="FILE", help="Measured speed from here too: of `bench --json`, or `tune --state`."
        ),
    ] = None,
    as_json: shared.Json = False,
) -> None:
    """Show the plan of kernels: shared memory to the byte, registers, roofline, and measured speed where it is known.

    Known is what ships, what `flashgen tune` timed on this machine, and what --figures names. Figures of another plan
    of the same kernel are not shown.

    Example: `flashgen explain 'attention_fwd_fa3_sm90a_bf16_d128_*' --compile`
    """
    from flashgen.generator import describe, plan_entry
    from flashgen.kernel import cached_kernel

    documents = []
    measured = explain_measured.known(figures or ())
    for entry in shared.entries_of(configs, arch, only):
        explanation = describe(plan_entry(entry))
        built = _compiled(entry) if compile_it else cached_kernel(entry.spec, entry.request, origin=entry.origin)
        counts, no_counts = _instructions(built) if built is not None and compile_it else (None, "")
        found = explain_measured.records(explanation.plan, measured, built)
        if as_json:
            documents.append(_document(entry.origin, explanation, built, counts) | {"measured": found})
            continue
        _show(entry.origin, explanation)
        explain_measured.show(found)
        if built is not None:
            _show_compiled(built)
        if counts is not None:
            _line("instructions", no_counts or _counts(counts))
        _show_memory(explanation)
    if as_json:
        shared.print_json(documents)


def _compiled(entry: ConfigEntry) -> BuiltKernel:
    from flashgen.kernel import build_kernel

    with shared.working(f"compiling {entry.spec.name}"):
        return build_kernel(entry.spec, entry.request, origin=entry.origin)


def _instructions(built: BuiltKernel) -> tuple[dict[str, int], str]:
    """How often each occurs, or why they cannot be counted."""
    from flashgen.errors import ToolchainError
    from flashgen.sass import count_instructions

    try:
        return count_instructions(built.cubin), ""
    except ToolchainError as error:
        return {}, str(error)


def _document(
    origin: str, found: Explanation, built: BuiltKernel | None, counts: dict[str, int] | None
) -> dict[str, Any]:
    document = {"name": found.plan.name, "origin": origin, "chosen_by": found.plan.origin} | asdict(found)
    document |= {"flop_per_byte": found.flop_per_byte, "bound": found.bound, "matrix_share": found.matrix_share}
    if built is not None:
        document |= {"compiled": built.report() | ({} if counts is None else {"instructions": counts})}
    return document


def _show(origin: str, found: Explanation) -> None:
    plan = found.plan
    chosen = {"config": "the config", "shipped": "the shipped config", "model": "the cost model"}[plan.origin]
    shared.out.print(f"\n{plan.name}", style="bold", soft_wrap=True)
    shared.out.print(f"  from {origin}; choices by {chosen}", style="dim", soft_wrap=True)
    facts = {
        "tile": f"{plan.block_m} queries x {plan.block_n} keys, {_stages(plan)}",
        "head dims": f"qk {plan.spec.head_dim_qk} and v {plan.spec.head_dim_v}, "
        f"in shared memory {plan.padded_qk} and {plan.padded_v}",
        "threads": f"{plan.threads}: 1 producer and {plan.consumer_warpgroups} consumer warpgroups",
        "registers": f"{plan.producer_registers} producer, {plan.consumer_registers} consumer a thread; "
        f"{found.registers} of the block's {found.register_pool}",
        "accumulators": ", ".join(f"{name} {count}" for name, count in found.accumulators)
        + f": {found.accumulator_registers} of {found.accumulator_limit} a thread",
        "schedule": f"{_schedule(plan)}, swizzle {plan.swizzle_qk} and {plan.swizzle_v} bytes",
        "roofline": f"{found.flop / 1e6:.2f} MFLOP a block in {found.matrix_cycles:.0f} tensor core cycles, "
        f"{found.exp2_cycles:.0f} of exp2: at most {found.matrix_share:.0%} of peak; "
        f"{found.flop_per_byte:.0f} FLOP/byte",
    }
    if found.workspace_bytes_per_row:
        facts["workspace"] = f"{found.workspace_bytes_per_row:.6g} bytes a query row and head"
    for name, value in facts.items():
        _line(name, value)


def _show_memory(found: Explanation) -> None:
    rows = [(f"  {row.name}", row.offset, row.bytes) for row in found.smem]
    total = ("  total", "", f"{found.smem_bytes} of {found.smem_limit}")
    shared.print_table(None, ("  shared memory ", "offset", "bytes"), [*rows, total])


def _show_compiled(built: BuiltKernel) -> None:
    used = built.resources
    _line(
        "compiled",
        f"by NVRTC {built.toolchain.nvrtc_version} in {built.seconds:.1f} s{' (cached)' if built.cached else ''}, "
        f"{len(built.cubin)} bytes, sha256 {built.sha256[:16]}",
    )
    _line(
        "ptxas",
        f"{used.registers} registers at launch, {used.stack_bytes} bytes of stack, "
        f"{used.spill_stores} bytes stored and {used.spill_loads} loaded by spills",
    )
    for complaint in used.complaints:
        shared.out.print(f"  not shippable: {complaint}", style="bold red", markup=False, soft_wrap=True)


def _line(name: str, value: str) -> None:
    shared.out.print(f"  {name:13} {value}", markup=False, soft_wrap=True)


def _counts(counts: dict[str, int]) -> str:
    shown = {name: counts[name] for name in TOLD if name in counts}
    shown |= {name: count for name, count in list(counts.items())[:MOST_FREQUENT] if name not in shown}
    return f"{sum(counts.values())}: " + ", ".join(f"{name} {count}" for name, count in shown.items())


def _stages(plan: AnyPlan) -> str:
    from flashgen.generator import KernelPlan

    if isinstance(plan, KernelPlan):
        return f"{plan.stages} stages"
    return f"{plan.stages_q} stages of q, {plan.stages_do} of dout, {plan.stages_ds} of ds"


def _schedule(plan: AnyPlan) -> str:
    from flashgen.generator import KernelPlan

    if isinstance(plan, KernelPlan):
        return (
            f"{plan.scheduler} scheduler, overlap {_yes(plan.overlap)}, ping-pong {_yes(plan.pingpong)}, "
            f"rescale {plan.rescale}{' and lazy' if plan.lazy_rescale else ''}, "
            f"start {'early' if plan.early_start else 'late'}, epilogue {plan.epilogue}"
        )
    roles = "one warpgroup holds dv, the other dk" if plan.split_roles else "each warpgroup holds dk and dv of 64 keys"
    roles += ", its keys in registers" if plan.keys_in_registers else ""
    columns = " and ".join(str(count) for count in plan.dq_columns if count)
    first = "the first stored" if plan.stores_first else "zeroed before"
    order = "in the order of the keys" if plan.keys_in_order else "in any order"
    blocks = "; one block of keys after another" if plan.persistent else ""
    return f"{roles}, {columns} columns of dq in {plan.dq_passes} pass(es), {first}, added {order}{blocks}"


def _yes(value: bool) -> str:
    return "on" if value else "off"
