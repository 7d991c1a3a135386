"""Votes: at once in a run of one process; of several, all act after the same step whoever wished."""

from __future__ import annotations

import math

import jax
import numpy as np
import pytest

from paceline.topology.mesh import data_mesh
from paceline.train import votes as module
from paceline.train.loop import AHEAD
from paceline.train.votes import Stop, Votes, Wish

STOP, SAVE = Wish(Stop.TERMINATE), Wish(save=True)


def test_one_process_has_its_way_at_once():
    """Nothing to agree on: the wish of this step is the answer of this step, and no program runs."""
    votes = Votes(data_mesh(jax.devices()[:4]), first_step=0, ahead=AHEAD)
    assert not votes.several
    assert votes.after_step(1, Wish(), step_s=0.1) == Wish()
    assert votes.after_step(2, STOP, step_s=math.nan) == STOP
    assert votes.after_step(3, SAVE, step_s=0.1) == SAVE


@pytest.fixture
def team(monkeypatch):
    """Two processes of one device each, stepped together; a vote is the largest of what they cast."""
    mesh = data_mesh(jax.devices()[:2])
    cast = []

    def gather(shape, sharding, part):
        assert shape == (2, 3)
        cast.append(part(None)[0].tolist())
        return cast

    monkeypatch.setattr(module, "local_positions", lambda mesh: (0,))
    monkeypatch.setattr(module.jax, "make_array_from_callback", gather)
    # Read when all have cast: the array is made only as the result is fetched, as on devices.
    monkeypatch.setattr(module, "_largest", lambda whole: lambda votes: Lazy(votes))

    class Lazy:
        def __init__(self, votes):
            self.number = len(votes)

        def addressable_data(self, index):
            first = (self.number - 1) // 2 * 2
            assert len(cast) >= first + 2, "read before all had voted"
            return np.max(cast[first : first + 2], axis=0)

    return [Votes(mesh, first_step=10, ahead=AHEAD) for _ in range(2)]


def stepped(team, wishes, *, steps, step_s=0.0):
    """Agreed wishes by step; `wishes` {(process, step): wish} last from their step on. All must agree at each step."""
    agreed = {}
    times = step_s if isinstance(step_s, tuple) else (step_s, step_s)
    for step in range(11, 11 + steps):
        answers = []
        for index, votes in enumerate(team):
            wish = next(
                (wish for (process, first), wish in wishes.items() if process == index and step >= first), Wish()
            )
            answers.append(votes.after_step(step, wish, step_s=times[index]))
        assert answers[0] == answers[1], step
        agreed[step] = answers[0]
    return agreed


def test_a_wish_of_one_becomes_that_of_all_after_the_same_step(team):
    """Process 1 wishes to stop from step 13 on: nobody stops before the vote that carries it is read, then both do."""
    agreed = stepped(team, {(1, 13): STOP}, steps=12, step_s=0.3)
    stops = [step for step, wish in agreed.items() if wish.stop is Stop.TERMINATE]
    assert stops and 13 + AHEAD <= stops[0] <= 13 + 2 * AHEAD + 1
    assert all(agreed[step] == Wish() for step in range(11, stops[0]))


@pytest.mark.parametrize(
    ("wishes", "expected"),
    [
        ({(0, 11): Wish(Stop.CALLBACK), (1, 11): STOP}, Wish(Stop.TERMINATE)),
        ({(0, 11): Wish(Stop.INTERRUPT), (1, 11): SAVE}, Wish(Stop.INTERRUPT, save=True)),
        ({(0, 11): SAVE}, SAVE),
    ],
)
def test_of_several_reasons_the_largest_counts(team, wishes, expected):
    """And a wish to save is kept beside one to stop."""
    agreed = stepped(team, wishes, steps=6)
    assert next(wish for wish in agreed.values() if wish != Wish()) == expected


@pytest.mark.parametrize(("step_s", "apart"), [((0.01, 0.01), 25), ((0.01, 0.05), 5), ((2.0, 0.01), 1)])
def test_votes_are_a_quarter_of_a_second_apart_by_the_slowest(team, step_s, apart):
    """10 ms steps: every 25th; the slower process decides; steps longer than that: as often as can be."""
    wish = {(0, 0): SAVE}  # asked for all the time, so each reading shows
    agreed = stepped(team, wish, steps=80, step_s=step_s)
    read = [step for step, found in agreed.items() if found.save]
    gaps = set(np.diff(read).tolist())
    assert gaps == {apart + AHEAD}
    assert read[0] == 12 + AHEAD  # the first vote follows soon after the start


def test_an_unknown_time_of_a_step_votes_again_soon(team):
    """NaN, as before the second step: the next vote follows the reading."""
    agreed = stepped(team, {(0, 0): SAVE}, steps=12, step_s=math.nan)
    assert np.diff([step for step, found in agreed.items() if found.save]).tolist() == [1 + AHEAD] * 2
