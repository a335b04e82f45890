"""``flashgen tune --compile-only``: real candidates, compiled into the cache and listed."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from flashgen.cli.app import app
from flashgen.generator import BackwardRequest, KernelSpec, PlanRequest, plan, plan_backward
from flashgen.kernel import cached_kernel
from flashgen.loading import kernel_for


def test_candidates_of_a_head_dim_are_in_the_cache_afterwards() -> None:
    words = ["tune", "--head-dim", "16", "--mask", "causal", "--budget", "2", "--compile-only", "--json"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    (document,) = json.loads(done.stdout)
    spec = KernelSpec.forward(head_dim=16, mask="causal")
    assert document["name"] == spec.name
    assert len(document["plans"]) == 2
    for row in document["plans"]:
        request = PlanRequest(**row["request"])
        built = cached_kernel(spec, request)
        assert built is not None
        assert (built.cached, built.sha256, built.shippable) == (True, row["sha256"], row["shippable"])
        assert row["smem_bytes"] == plan(spec, request).smem_bytes


def test_candidates_of_a_config_hold_its_own_plan(tmp_path: Path) -> None:
    config = tmp_path / "x.yaml"
    config.write_text(
        "kernel: attention_fwd\narch: sm90a\ndtype: fp16\nhead_dim: 24\nkeys: {from: 9}\ntile: {m: 64, n: 32}"
    )
    done = CliRunner().invoke(app, ["tune", str(config), "--budget", "2", "--compile-only"])
    assert done.exit_code == 0, done.output
    assert "64x32x2 " in done.stdout
    assert "2 of 2 feasible plans of attention_fwd_fa3_sm90a_fp16_d24_full may be shipped" in done.stdout


def test_candidates_of_a_backward_are_compiled_with_the_forward_that_they_are_timed_over() -> None:
    words = ["tune", "--backward", "--head-dim", "16", "--mask", "causal", "--budget", "3", "--compile-only", "--json"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    (document,) = json.loads(done.stdout)
    forward = KernelSpec.forward(head_dim=16, mask="causal")
    spec = forward.backward_of()
    assert document["name"] == spec.name
    assert len(document["plans"]) == 3
    for row in document["plans"]:
        request = BackwardRequest(**row["request"])
        built = cached_kernel(spec, request)
        assert built is not None
        assert (built.cached, built.sha256, built.shippable) == (True, row["sha256"], True)
        assert row["smem_bytes"] == plan(spec, request).smem_bytes
    assert plan_backward(spec).request.explicit in [row["request"] for row in document["plans"]]
    assert cached_kernel(forward, kernel_for(forward, 4096).plan.request) is not None
