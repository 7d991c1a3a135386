"""What to change when a step does not fit."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import numpy as np
import pytest

from paceline.engine.parallel import Parallel
from paceline.insight.memory.accounting import account_state
from paceline.insight.memory.advice import Case, Variant, advise, least_arguments
from paceline.insight.memory.rematerialise import rematerialised
from paceline.insight.memory.split import StepMemory, split_memory
from tests.insight.memory.steps import PARAMS, ROWS, TASK, compiled, init, state_of

STATE = 12 * PARAMS + 24
"""float32 with adam: parameters, two moments, a count, counters and the key."""


def case(memory: StepMemory | None, *, devices: int = 4, rows: int = 64, **options: Any) -> Case:
    parallel = Parallel(**options)
    return Case(parallel, devices, rows, state_of(parallel), memory)


def by_name(found: list[Any]) -> dict[str, int | None]:
    return {advice.name: advice.bytes for advice in found}


def test_the_ways_out_come_in_order_of_cost_with_numbers_by_arithmetic():
    """Undonated: 4,000,000 B of temporaries fit the limit in 4 parts; zero1 saves 3/4 of the moments; about all."""
    memory = StepMemory(STATE, STATE, 4_000_000, 0)
    found = advise(case(memory, donate=False), 2_000_000)
    names = ["donation", "accumulation", "zero1", "rematerialisation", "fsdp", "bfloat16"]
    assert [advice.name for advice in found] == names
    moments, quarter = 8 * PARAMS, 8 * (PARAMS - 1) // 4 + 8
    assert by_name(found) == {
        "donation": memory.peak - STATE,
        "accumulation": memory.peak - 3_000_000,
        "zero1": memory.peak - moments + quarter,
        "rematerialisation": None,
        "fsdp": memory.peak - 12 * PARAMS + 12 * (PARAMS - 1) // 4 + 12,
        "bfloat16": None,
    }
    assert [advice.how for advice in found] == ["about", "about", "about", "unknown", "about", "unknown"]
    assert found[1].text() == "--accumulation 4 (about 1.4 MB a device)"
    assert found[2].text().startswith("--placement zero1 (optimizer state shared: about ")


def test_what_was_compiled_is_said_without_about_and_what_saves_nothing_is_left_out():
    """zero1 compiles to 3 MB; rematerialisation to more than there is now, so it is no advice."""
    memory = StepMemory(STATE, 0, 4_000_000, 0)
    asked: list[Variant] = []

    def peak(variant: Variant) -> int | None:
        asked.append(variant)
        if variant.rematerialise:
            return memory.peak + 1
        return 3_000_000 if variant.parallel.placement == "zero1" else None

    found = advise(case(memory), 2_000_000, peak_of_variant=peak)
    assert [advice.name for advice in found] == ["accumulation", "zero1", "fsdp", "bfloat16"]
    assert found[1].text() == "--placement zero1 (optimizer state shared: 3.0 MB a device)"
    changed = [dataclasses.replace(Parallel(), **change) for change in ({"accumulation": 4}, {"placement": "zero1"})]
    assert asked[:2] == [Variant(parallel) for parallel in changed]


def test_the_number_of_microbatches_is_raised_until_it_compiles_to_what_fits():
    """By arithmetic 4 are enough; the compiler needs 8."""
    memory = StepMemory(STATE, 0, 4_000_000, 0)
    found = advise(
        case(memory), 2_000_000,
        peak_of_variant=lambda variant: {4: 1_900_000, 8: 1_200_000}.get(variant.parallel.accumulation),
    )  # fmt: skip
    assert found[0].flags == "--accumulation 8" and found[0].bytes == 1_200_000


def test_what_cannot_help_is_not_offered():
    """One device shares nothing; a batch of a row each has no microbatches; bfloat16 twice is no change."""
    memory = StepMemory(STATE, 0, 4_000_000, 0)
    alone = advise(case(memory, devices=1, rows=1, precision="bfloat16"), 2_000_000)
    assert [advice.name for advice in alone] == ["rematerialisation"]
    shared = advise(case(memory, placement="zero1"), 2_000_000)
    assert "zero1" not in by_name(shared) and "fsdp" in by_name(shared)
    assert not [advice for advice in advise(case(memory), 50_000) if advice.name in ("accumulation", "zero1")]


def test_the_least_that_a_device_holds_is_that_of_fsdp():
    """A quarter of the state and the leaves that do not split; on one device all of it; unknown without numbers."""
    memory = StepMemory(STATE, 0, 4_000_000, 0)
    assert least_arguments(case(memory)) == STATE - 12 * PARAMS + 12 * (PARAMS - 1) // 4 + 12
    assert least_arguments(case(memory, devices=1)) == STATE
    assert least_arguments(case(None)) is None


def test_without_a_compiled_step_the_ways_have_no_numbers():
    """It did not compile: the same order, microbatches from the first possible on."""
    found = advise(case(None), None)
    assert [advice.name for advice in found] == ["accumulation", "zero1", "rematerialisation", "fsdp", "bfloat16"]
    assert found[0].text() == "--accumulation 2 or more"
    assert all(advice.bytes is None for advice in found)


@pytest.mark.parametrize(("name", "change"), [("zero1", {"placement": "zero1"}), ("accumulation", {"accumulation": 4})])
def test_the_arithmetic_is_near_the_compiler(name, change):
    """1024 rows on 2 devices by `per_device`: what is said to be about so much compiles to that within 10 %."""
    parallel = Parallel(scheme="per_device")
    state = state_of(parallel, devices=2)
    expected = account_state(state, parallel=parallel, num_devices=2, batch=ROWS, rows=1024)
    memory = split_memory(compiled(parallel, rows=1024, devices=2), expected=expected)
    found = advise(Case(parallel, 2, 1024, state, memory), int(0.7 * memory.peak))
    (about,) = [advice for advice in found if advice.name == name]
    got = compiled(dataclasses.replace(parallel, **change), rows=1024, devices=2).allocated_bytes
    assert about.flags in ("--placement zero1", "--accumulation 4")
    assert about.bytes == pytest.approx(got, rel=0.1)


def test_rematerialisation_changes_no_value_and_keeps_less():
    """Loss and gradients to 1e-6; between the passes JAX keeps fewer bytes."""
    params = jax.tree.map(lambda leaf: leaf + 0.1, init(None))
    batch = {"x": np.linspace(0, 1, 8 * 64, dtype=np.float32).reshape(8, 64), "y": np.arange(8, dtype=np.int32)}

    def outcome(task: Any) -> Any:
        return jax.jit(jax.value_and_grad(lambda p: task.loss(p, {}, batch, jax.random.key(0)).loss.sum()))(params)

    close = functools.partial(np.testing.assert_allclose, rtol=1e-6, atol=1e-7)
    jax.tree.map(close, outcome(rematerialised(TASK)), outcome(TASK))

    def kept(task: Any) -> int:
        back = jax.eval_shape(
            lambda p: jax.vjp(lambda q: task.loss(q, {}, batch, jax.random.key(0)).loss, p)[1], params
        )
        return sum(leaf.size for leaf in jax.tree.leaves(back))

    assert kept(rematerialised(TASK)) < kept(TASK)
