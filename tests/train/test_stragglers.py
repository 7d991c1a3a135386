"""Who holds up the others, from what each did between its steps. With two real processes: `test_two_processes`."""

from __future__ import annotations

import json

import pytest

from paceline.topology.processes import Processes
from paceline.train.stragglers import compare


class Team(Processes):
    """Processes whose words are written down beforehand."""

    def __init__(self, *entries):
        super().__init__(0, len(entries), tuple(f"m{index}" for index in range(len(entries))))
        self.entries = [({"input_s": float(a), "host_s": float(b)}, total) for a, b, total in entries]

    def exchange(self, name, text, *, timeout_s=0.0):
        assert json.loads(text) == [self.entries[0][0], self.entries[0][1]]
        return [json.dumps(entry) for entry in self.entries]


def told(*entries):
    """The report of processes given as (input seconds, callback seconds) in a run of 10 s."""
    team = Team(*((*entry, 10.0) for entry in entries))
    return compare(team, team.entries[0][0], total_s=10.0)


@pytest.mark.parametrize(
    ("entries", "process", "cause", "cost_s"),
    [
        ([(0, 0), (3, 0)], 1, "input_s", 3.0),
        ([(0.5, 2), (0.5, 0)], 0, "host_s", 2.0),
        ([(1, 0), (1, 0), (1, 0), (4, 0.5)], 3, "input_s", 3.5),
        ([(1, 0), (1, 1.5), (1, 0)], 1, "host_s", 1.5),
        ([(2, 0), (0, 2)], 0, "input_s", 0.0),
    ],
)
def test_the_cost_is_what_the_slowest_takes_beyond_the_median(entries, process, cause, cost_s):
    """Of two processes the faster one is the median; waits of all cost nothing, since none holds up another."""
    report = told(*entries)
    assert (report.process, report.machine, report.cause) == (process, f"m{process}", cause)
    assert report.cost_s == pytest.approx(cost_s) and report.cost_share == pytest.approx(cost_s / 10)
    assert [entry["input_s"] for entry in report.own_s] == [entry[0] for entry in entries]


def test_the_words_name_process_machine_cause_and_share():
    """3 s against 1 s, of 10: 20 %."""
    text = str(told((1, 0), (3, 0)))
    assert text == (
        "process 1 (m1) is the slowest: 3 s waiting for input against 1 s in the median; it costs 20 % of the time"
    )
    assert "2 s in callbacks" in str(told((0, 2), (0, 0)))


def test_less_than_a_percent_is_no_straggler():
    """0.05 s of 10: nobody holds up the others, and by how little."""
    assert str(told((0, 0), (0.05, 0))) == "none holds up the others (the slowest, process 1, by 0.5 %)"


def test_every_process_reports_the_same_whatever_its_own_clock_says():
    """A total of 10 s in process 0 and 20 s in process 1: the share is of 10 s in both."""
    team = Team((0, 0, 10.0), (3, 0, 20.0))
    one = compare(team, team.entries[0][0], total_s=10.0)
    other = Team(*((*entry, total) for entry, total in [((0, 0), 10.0), ((3, 0), 20.0)]))
    other.exchange = lambda name, text, timeout_s=0.0: [json.dumps(entry) for entry in other.entries]
    assert compare(other, other.entries[1][0], total_s=20.0) == one


def test_a_run_of_one_step_has_no_time_to_share():
    """No step was timed: no division by zero, no cost."""
    team = Team((0, 0, 0.0), (1, 0, 0.0))
    assert compare(team, team.entries[0][0], total_s=0.0).cost_share == 0.0
