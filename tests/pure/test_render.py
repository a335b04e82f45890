"""The rendered text: every constant of the plan, nothing that a user typed, the same on every run."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import jinja2
import pytest

from flashgen.generator import Epilogue, KernelSpec, PlanRequest, Rescale, Scheduler, plan, render
from flashgen.generator.paths import ROOT, TEMPLATES
from flashgen.generator.render import comment_text

D128 = KernelSpec.forward(head_dim=128, mask="causal")
SPELLED_OUT = PlanRequest(
    block_m=128, block_n=96, stages=3, stages_q=1, early_start=True, scheduler=Scheduler.single, overlap=True,
    pingpong=False,    rescale=Rescale.late, epilogue=Epilogue.registers, swizzle_qk=64, swizzle_v=128,
)  # fmt: skip


def constants(text: str) -> dict[str, str]:
    return dict(re.findall(r"static constexpr \w+ (k\w+) = (\w+);", text))


def aliases(text: str) -> dict[str, str]:
    return dict(re.findall(r"using (\w+) = ([\w:]+);", text))


def test_config_struct_holds_the_plan() -> None:
    made = plan(D128, SPELLED_OUT)
    text = render(made)
    assert constants(text) == {
        "kHeadDimQK": "128",
        "kHeadDimV": "128",
        "kBlockM": "128",
        "kBlockN": "96",
        "kStages": "3",
        "kConsumerWarpgroups": "2",
        "kThreads": "384",
        "kProducerRegisters": "24",
        "kConsumerRegisters": "240",
        "kSmemBytes": str(made.smem_bytes),
        "kOverlap": "true",
        "kPingPong": "false",
        "kRescaleEarly": "false",
        "kLazyRescale": "true",
        "kEarlyStart": "true",
        "kStagesQ": "1",
        "kOutputTile": "false",
        "kChunkQK": "32",
        "kChunkV": "64",
    }
    assert aliases(text) == {
        "Element": "cutlass::bfloat16_t",
        "Mask": "flashgen::CausalMask",
        "Scheduler": "flashgen::SingleTileScheduler",
    }


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("mask", ["full", "causal"])
@pytest.mark.parametrize("scheduler", list(Scheduler))
def test_types_follow_the_words(dtype: str, mask: str, scheduler: Scheduler) -> None:
    spec = KernelSpec.forward(head_dim=64, dtype=dtype, mask=mask)
    names = aliases(render(plan(spec, PlanRequest(scheduler=scheduler))))
    assert names["Element"] == {"bf16": "cutlass::bfloat16_t", "fp16": "cutlass::half_t"}[dtype]
    assert names["Mask"] == {"full": "flashgen::FullMask", "causal": "flashgen::CausalMask"}[mask]
    assert names["Scheduler"].lower().startswith(f"flashgen::{scheduler}")


def test_entry_point_carries_the_name() -> None:
    made = plan(KernelSpec.forward(head_dim=192, head_dim_v=128))
    text = render(made, "configs/sm90/attention_fwd_d192x128.yaml:2")
    assert re.search(rf'extern "C" __global__ void\s.*\b{made.name}\(', text, re.DOTALL)
    assert "configs/sm90/attention_fwd_d192x128.yaml:2" in text
    assert text.startswith(f"// {made.name}\n")
    assert "#include <flashgen/fa3/forward.cuh>" in text
    assert text.endswith("}\n")
    assert "{{" not in text
    assert "{%" not in text


def test_origin_changes_a_comment_and_nothing_else() -> None:
    made = plan(D128)

    def code(origin: str) -> list[str]:
        return [line for line in render(made, origin).splitlines() if not line.startswith("//")]

    assert code("a.yaml:1") == code("") == code("*/ evil();\n#include <x>")


@pytest.mark.parametrize(
    ("origin", "shown"),
    [
        ("configs/sm90/attention_fwd_d128.yaml:2", "configs/sm90/attention_fwd_d128.yaml:2"),
        ("(text):1", "(text):1"),
        ("/home/someone/secret/x.yaml:3", "x.yaml:3"),
        ("C:\\Users\\someone\\x.yaml:3", "x.yaml:3"),
        ("a\nint evil;", "a_int evil_"),
        ("a.yaml\\", "a.yaml_"),
        ("a??/b", "a__/b"),
        ("*/ evil /*", "_/ evil /_"),
        ("{{ 7 * 7 }}", "__ 7 _ 7 __"),
        ("a\u2028b\u00e9", "a_b_"),
        ("x" * 500, "x" * 200),
    ],
)
def test_origins_cannot_leave_the_comment(origin: str, shown: str) -> None:
    assert comment_text(origin) == shown
    assert "49" not in render(plan(D128), origin).splitlines()[1] or "49" in origin


def test_same_text_in_another_process_and_folder(tmp_path: object) -> None:
    code = (
        "from flashgen.generator import *; import sys;"
        "sys.stdout.write(render(plan(KernelSpec.forward(head_dim=72)), 'a.yaml:1'))"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "7"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=str(tmp_path), env=environment
    )
    assert done.stdout == render(plan(KernelSpec.forward(head_dim=72)), "a.yaml:1")
    assert str(ROOT) not in done.stdout


def test_an_undefined_name_in_a_template_is_an_error() -> None:
    from flashgen.generator.render import _environment

    with pytest.raises(jinja2.UndefinedError):
        _environment().from_string("{{ plan.no_such_field }}").render(plan=plan(D128))


def test_templates_hold_no_control_flow_around_code() -> None:
    text = (TEMPLATES / "attention_fwd.cu.jinja").read_text("utf-8")
    assert "{% for" not in text
    assert len(text.splitlines()) <= 60
