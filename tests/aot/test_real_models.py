"""Models of real size, compiled for 8 H100s without one: what a plan says of them, against published counts.

Takes minutes, so each program is compiled once.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from paceline.data.example import read_example
from paceline.engine.parallel import Parallel
from paceline.insight.compiling.target import has_cuda_compiler
from paceline.insight.hardware.machine import parse_machine
from paceline.insight.plan.place import choose_place
from paceline.insight.plan.plan import Ask, make_plan
from paceline.insight.plan.programs import Programs, StepProgram, Workload
from paceline.recipes.find import find_recipe
from paceline.recipes.recipe import RunShape

pytestmark = [
    pytest.mark.aot,
    pytest.mark.timeout(1500),  # two programs at once take 45 s on free cores; CI gives them what its other tests leave
    pytest.mark.skipif(not has_cuda_compiler(), reason="needs the CUDA plugin of JAX: pip install 'paceline[cuda13]'"),
]

TASKS = Path(__file__).parents[2] / "benchmarks" / "tasks"
MACHINE = parse_machine("8xH100")
BFLOAT16 = Parallel("per_device", precision="bfloat16")


def programs(name: str, *, batch: int, **options: Any) -> Programs:
    recipe = find_recipe(str(TASKS / f"{name}.py"))
    job = recipe.make_job(recipe.options(**options), RunShape(batch, None, 1, 0))
    work = Workload(job.task, job.optimizer, read_example(job.data).structure, prefetch=2)
    return Programs(work, choose_place(MACHINE), devices=8)


@pytest.fixture(scope="module")
def resnet() -> Programs:
    return programs("resnet", batch=1024)


@pytest.fixture(scope="module")
def plan(resnet: Programs):
    return make_plan(resnet, MACHINE, parallel=BFLOAT16, ask=Ask(1024), notes=())


def test_resnet_50_has_three_times_the_work_of_its_forward_pass(plan):
    """8.2 GFLOP an image forward (4.1 G multiply-adds), as much for each of both gradients: 24.6, within 3 %."""
    assert plan.flops_per_sample == pytest.approx(3 * 8.2e9, rel=0.03)


def test_gradients_of_resnet_50_cross_the_wire_once_as_float32(plan):
    """M x 4 bytes, but for four pairs of BatchNorm biases that are added, so that a gradient serves both: 15,360 bytes.

    Everything else (BatchNorm statistics, totals) is under 1 %.
    """
    state = plan.step_program.memory.expected
    assert plan.step_program.program.gradient_bytes == {"float32": state.params - 15_360}
    assert sum(plan.step_program.program.wire_bytes_by_dtype.values()) < 1.01 * state.params
    assert state.params == 4 * 25_557_032


def test_nothing_of_the_program_is_unknown(plan):
    assert not plan.step_program.program.unknown
    assert not plan.step_program.program.unknown_loops
    assert plan.step_program.compiled.platform == "cuda"


def test_memory_between_two_compiled_batches_is_within_three_percent(resnet, plan):
    """128 and 256 rows are compiled; at 192 the line through both and the compiler agree."""
    peaks = [resnet.one(BFLOAT16, rows).memory.peak for rows in (128, 192, 256)]
    assert (peaks[0] + peaks[2]) / 2 == pytest.approx(peaks[1], rel=0.03)


def test_bfloat16_saves_about_forty_percent_of_the_memory(resnet, plan):
    """The classic figure for mixed precision, at the same batch; here more, since it is nearly all activations."""
    wide = resnet.one(dataclasses.replace(BFLOAT16, precision="float32"), 128).memory.peak
    assert 0.4 < 1 - plan.step_program.memory.peak / wide < 0.55


@pytest.fixture(scope="module")
def gpt() -> StepProgram:
    return programs("gpt", batch=64).one(BFLOAT16, 8)


def test_gpt_has_6_n_and_12_l_d_s_operations_a_token(gpt):
    """N without the table of positions, which multiplies nothing; L = 12, d = 768, s = 1024; within 3 %."""
    tokens = 8 * 1024
    weights = 50304 * 768 + 12 * 12 * 768**2
    expected = 6 * weights + 12 * 12 * 768 * 1024
    assert gpt.program.work.total_flops / tokens == pytest.approx(expected, rel=0.03)
