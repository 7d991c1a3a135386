"""Killed at random moments, a run ends as if it had never been touched."""

from __future__ import annotations

import pytest

from tests.properties.kills import BATCH, PATIENCE_S, ROWS, STEPS, Killer, history, last_state, launching, rows_of
from tests.properties.kills import write_task as task_in

# 20 in all. Each attempt saves at least once before it is killed, or starts from where the last one did.
MOMENTS = {
    1: ["start", "save", "step", "start", "step", "save", "step", "start", "save", "step", "save", "step"],
    2: ["save", "step", "start", "save", "step", "start", "save", "step"],
}


@pytest.mark.slow(reason="20 processes of a run are killed, each of which takes seconds to start again")
@pytest.mark.once(reason="what a kill can tear is written by Paceline and Orbax, which are the same at both ends")
@pytest.mark.parametrize("processes", [1, 2])
def test_a_run_that_was_killed_is_the_run_that_was_not(processes, tmp_path):
    """12 SIGKILLs with one process and 8 with two, at the start, between steps and in saves: the last state is equal
    bit for bit, so is every metric of the history, and each epoch holds each row once."""
    task_in(tmp_path)
    with launching(tmp_path, processes=processes, run="whole") as launch:
        assert launch.wait(PATIENCE_S) == 0, (tmp_path / "whole.out").read_text()
    with launching(tmp_path, processes=processes, run="killed") as launch:
        killer = Killer(launch, tmp_path / "killed", seed=processes)
        for moment in MOMENTS[processes]:
            assert killer.kill(moment), (killer.moments, (tmp_path / "killed.out").read_text()[-5000:])
        assert launch.wait(PATIENCE_S) == 0, (tmp_path / "killed.out").read_text()[-5000:]
    assert f"restart {len(MOMENTS[processes])} of 30" in (tmp_path / "killed.out").read_text()
    assert killer.moments == MOMENTS[processes]
    assert last_state(tmp_path / "killed") == last_state(tmp_path / "whole")
    steps = history(tmp_path / "killed")
    assert steps == history(tmp_path / "whole") and sorted(steps) == list(range(1, STEPS + 1))
    each = ROWS // BATCH
    for first in range(1, STEPS + 1, each):
        seen = [row for step in range(first, first + each) for row in rows_of(steps[step])]
        assert sorted(seen) == list(range(ROWS)), first
