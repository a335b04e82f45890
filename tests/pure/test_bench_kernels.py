"""What a row says of the kernel that ran: its name, its plan and its machine code."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flashgen.backward_kernel import BackwardKernel
from flashgen.bench_grid import BACKWARD_GRID, GRID, OURS, STEADY
from flashgen.bench_kernels import identity, own_kernels
from flashgen.callable_kernel import Code, Kernel
from flashgen.generator import KernelSpec, PlanRequest, load_config, plan, plan_backward, shipped_configs


def test_the_kernel_of_a_shape_is_the_one_meant_for_its_keys() -> None:
    shipped = {entry.spec for path in shipped_configs() for entry in load_config(path)}
    for shape in GRID:
        assert list(own := own_kernels(shape, None, True)) == [OURS]
        assert own[OURS].spec in shipped
        assert own[OURS].spec.any_length == shape.spec()
        assert own[OURS].spec.meant_for(shape.seqlen_k)


def test_the_backward_of_a_shape_is_the_one_meant_for_its_keys() -> None:
    shipped = {entry.spec for path in shipped_configs() for entry in load_config(path)}
    ranges = set()
    for shape in BACKWARD_GRID:
        assert list(own_kernels(shape, None, False)) == [OURS]
        own = own_kernels(shape, None, True)
        for name, steady in ((OURS, False), (STEADY, True)):
            assert own[name].spec in shipped
            assert own[name].spec.any_length == shape.spec(steady)
            assert own[name].spec.meant_for(shape.seqlen_k)
            ranges.add((own[name].spec.keys_from, own[name].spec.keys_below))
    assert len(ranges) > 1, "some ship for few keys and some for many"


def test_given_kernels_are_those_of_the_shape() -> None:
    shape = GRID[0]
    plain = Kernel(plan(shape.spec(), PlanRequest(block_m=128, block_n=64)), pytest.fail)
    ranged = Kernel(plan(replace(shape.spec(), keys_from=4096), PlanRequest(block_m=64, block_n=64)), pytest.fail)
    other = Kernel(plan(KernelSpec.forward(head_dim=72)), pytest.fail)
    assert list(own_kernels(shape, [plain, ranged, other], False).values()) == [plain, ranged]
    back = BACKWARD_GRID[0]
    assert own_kernels(back, [plain, ranged, other], False) == {}
    gradients = BackwardKernel(plan_backward(replace(back.spec(), keys_from=4096)), pytest.fail)
    assert list(own_kernels(back, [plain, gradients], False).values()) == [gradients]


def test_a_row_names_the_kernel_that_ran() -> None:
    made = plan(GRID[0].spec())
    kernel = Kernel(made, lambda: Code(b"", "5ha", {}))
    found = identity(kernel, True)
    assert found == {"kernel": made.name, "plan": made.request.explicit, "sha256": "5ha"}
    assert plan(made.spec, PlanRequest(**found["plan"])) == made, "the plan is whole"
    assert identity(Kernel(made, pytest.fail), False)["sha256"] is None, "CPU tensors: nothing is compiled"
    assert identity(None, True) == {}
