"""Two processes that train together: who holds up whom, whole values, one stop for both, one checkpoint for both."""

from __future__ import annotations

import functools
import json

import numpy as np
import pytest

from tests.processes.run import run
from tests.train.two_processes import CALL_S, READ_S, STEPS
from tests.tries import try_of

pytestmark = pytest.mark.slow(reason="two processes start and compile four programs, once for all questions")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Of all starts."""
    return tmp_path_factory.mktemp("two")


@pytest.fixture
def found(folder, request):
    """What each of the two printed; every question below was asked in one start."""
    return _printed(folder / str(try_of(request)))


@functools.cache
def _printed(folder):
    folder.mkdir()
    ended = run(["-m", "tests.train.two_processes", folder], processes=2, timeout_s=120.0)
    for one in ended:
        assert one.returncode == 143, one.stderr
    return [json.loads(one.stdout.splitlines()[-1]) for one in ended]


@pytest.mark.clock(reason="the seconds that a straggler costs")
@pytest.mark.parametrize(
    ("number", "process", "cause", "words", "each_s"),
    [(1, 1, "input_s", "waiting for input", READ_S), (2, 0, "host_s", "in callbacks", CALL_S)],
)
def test_the_slowest_process_is_named_with_its_cause_and_its_cost(found, number, process, cause, words, each_s):
    """Slow rows in process 1, then slow callbacks in process 0: the cost is the seconds that were slept, more on a busy
    machine, and not what the fast run cost. Both processes report the same."""
    fast, slow = found[0]["stragglers"][0], found[0]["stragglers"][number]
    told = slow["stragglers"]
    assert told == found[1]["stragglers"][number]["stragglers"]
    assert (told["process"], told["cause"]) == (process, cause)
    slept_s = STEPS * each_s
    assert 0.7 * slept_s < told["cost_s"] < 2 * slept_s
    assert fast["stragglers"]["cost_s"] < 0.5 * slept_s
    (line,) = [line for line in slow["lines"] if line.startswith("processes")]
    assert f"process {process} (" in line and words in line and "% of the time" in line


def test_a_value_that_spans_processes_is_shown_whole(found):
    """tunix PR#2041, parameters split over both: the mean of ids 0 to 15 is 7.5 in both (3.5 and 11.5 are the parts),
    an evaluation's that of all 128; a parameter is whole after `single`, of which a process holds half."""
    for scheme in ("global_view", "per_device"):
        one, other = (entry["values"][scheme] for entry in found)
        assert one == other
        assert one["ids"] == [7.5, 23.5, 39.5] and one["evaluated"] == 63.5
        assert (one["here"], len(one["w"])) == (4, 8)
        assert one["sum"] == pytest.approx(np.sum(one["w"]), rel=1e-6)


def test_sigterm_to_one_process_stops_both_after_the_same_step(found):
    """Both end with 143 after one step, of which there is a checkpoint; resumed, they end as an unbroken run, bit for
    bit."""
    one, other = (entry["terminated"] for entry in found)
    assert one == other
    assert one["code"] == 143 and 5 < one["last"] < 500
    assert one["resumed_at"] == one["last"] and one["saved"] == [one["last"], one["last"] + 5]
    assert one["equal"]


def test_a_damaged_checkpoint_is_skipped_by_both(found):
    """One wrong byte in that of step 6: both say so and go on from step 4, to the parameters of an unbroken run."""
    for entry in found:
        assert entry["damaged"]["resumed_at"] == 4 and entry["damaged"]["equal"]
        assert any("step 6 is damaged and was skipped" in notice for notice in entry["damaged"]["notices"])
