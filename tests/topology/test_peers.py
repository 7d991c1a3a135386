"""Processes watch each other: a silent, failed or prematurely ended one is named; one that ended as planned is not.

The coordination service is a dictionary here; processes are monitors on it.
"""

from __future__ import annotations

import socket
import threading
import time

import jax
import pytest

from paceline.base.errors import PeerError
from paceline.topology import peers
from paceline.topology.peers import PeerMonitor

TIMEOUT_S = 0.6  # a busy machine stops a thread for a third of a second
HERE = socket.gethostname()


class Service:
    """JAX's key-value store: `gone` answers with an error, `cut` does not answer."""

    def __init__(self):
        self.values = {}
        self.gone = False
        self.cut = threading.Event()

    def key_value_set(self, key, value, allow_overwrite=False):
        self._answer()
        assert allow_overwrite or key not in self.values
        self.values[key] = value

    def key_value_try_get(self, key):
        self._answer()
        if key not in self.values:
            raise jax.errors.JaxRuntimeError(f"NOT_FOUND: Config key {key} not found.")
        return self.values[key]

    def blocking_key_value_get(self, key, timeout_in_ms):
        assert key in self.values, f"asked for {key} before it was set"
        return self.values[key]

    def _answer(self):
        if self.cut.is_set():
            threading.Event().wait(5)
        if self.gone:
            raise jax.errors.JaxRuntimeError("UNAVAILABLE: Socket closed")


class Team:
    """Monitors of P processes, each with its own way to the store, and what each lost."""

    def __init__(self, count, *, timeout_s=TIMEOUT_S, host=None):
        self.values = {}
        self.services, self.monitors, self.lost = [], [], {}
        for index in range(count):
            service = Service()
            service.values = self.values
            self.services.append(service)
            monitor = PeerMonitor(
                service, index, machines=[f"m{peer}" for peer in range(count)], timeout_s=timeout_s,
                host=host,                 on_lost=lambda error, index=index: self.lost.setdefault(index, error),
            )  # fmt: skip
            self.monitors.append(monitor)

    def start(self):
        for monitor in self.monitors:
            monitor.start()

    def await_lost(self, *indices, within_s=3.0):
        end_s = time.monotonic() + within_s
        while set(indices) - set(self.lost):
            assert time.monotonic() < end_s, f"only {self.lost}"
            time.sleep(0.005)

    def stop(self):
        for monitor in self.monitors:
            monitor.stop()


@pytest.fixture
def team(monkeypatch):
    """`team(P)`, with heartbeats of 20 ms."""
    monkeypatch.setattr(peers, "_BEAT_S", 0.02)
    monkeypatch.setattr(peers, "_GRACE_S", 0.1)
    monkeypatch.setattr(peers, "_NOTICE_S", 0.5)
    made = []

    def make(count=2, **options):
        made.append(Team(count, **options))
        return made[-1]

    yield make
    for one in made:
        one.stop()


@pytest.mark.clock(reason="a live peer has 0.6 s to beat")
def test_nobody_is_lost_while_all_beat(team):
    """Three times the time limit passes."""
    three = team(3)
    three.start()
    time.sleep(3 * TIMEOUT_S)
    assert three.lost == {}


def test_a_silent_peer_is_named_with_its_last_place(team):
    """Process 1 stops: process 0 names it, its machine, where it was, where it is itself, and what to do."""
    two = team()
    two.monitors[1].where = lambda: "step 41 (input)"
    two.monitors[0].where = lambda: "step 42 (step)"
    two.start()
    time.sleep(0.1)
    two.monitors[1].stop()
    two.await_lost(0)
    error = two.lost[0]
    assert error.exit_code == 75
    assert error.what.startswith(f"process 0 on {HERE} has not heard from process 1 (m1) for ")
    assert error.what.endswith("; it was last at step 41 (input); this process is at step 42 (step)")
    assert "--resume" in error.fix and "network" in error.fix


def test_a_death_is_known_long_before_the_time_limit(team):
    """The kernel closes the connection of process 2: process 0 names it and where it was; process 1 has only ended."""
    three = team(3, timeout_s=60.0, host="127.0.0.1")
    three.monitors[2].where = lambda: "step 7 (step)"
    three.start()
    time.sleep(0.1)
    three.monitors[1].finish()
    for index in (1, 2):
        three.monitors[index]._line.close()
    three.await_lost(0)
    error = three.lost[0]
    assert error.exit_code == 75 and error.what == f"process 2 (m2) has died at step 7 (step), says process 0 on {HERE}"
    assert "memory" in error.fix and "--resume" in error.fix


@pytest.mark.clock(reason="a live peer has 0.6 s to beat")
def test_a_process_that_ended_as_planned_did_not_die(team):
    """It says so before its connection closes."""
    two = team(2, timeout_s=60.0, host="127.0.0.1")
    two.start()
    time.sleep(0.1)
    two.monitors[1].finish()
    two.monitors[1]._line.close()
    time.sleep(0.5)
    assert two.lost == {}


@pytest.mark.clock(reason="both end a second after the limit")
def test_a_cut_network_ends_both_sides(team):
    """Process 1's calls hang, so process 0 hears nothing either: each names the other."""
    two = team()
    two.start()
    time.sleep(0.1)
    start_s = time.monotonic()
    two.services[1].cut.set()
    two.await_lost(0, 1)
    assert time.monotonic() - start_s < TIMEOUT_S + 1
    assert "not heard from process 1 (m1)" in two.lost[0].what
    assert "not heard from process 0 (m0)" in two.lost[1].what


def test_a_service_that_is_gone_is_process_0(team):
    """Errors instead of answers count as silence."""
    two = team()
    two.start()
    time.sleep(0.1)
    two.services[1].gone = True
    two.await_lost(1)
    assert "not heard from process 0 (m0)" in two.lost[1].what


def test_a_service_that_never_answered_is_process_0(team):
    """The network broke between the meeting and the first heartbeat."""
    two = team()
    two.services[1].cut.set()
    two.start()
    two.await_lost(1)
    assert "not heard from process 0 (m0)" in two.lost[1].what


def test_a_peer_that_never_began_to_beat_is_named(team):
    """It joined and died at once."""
    two = team()
    two.monitors[0].start()
    two.await_lost(0)
    assert "process 1 (m1)" in two.lost[0].what


@pytest.mark.clock(reason="a live peer has 0.6 s to beat")
def test_a_peer_that_ended_as_planned_is_not_missed(team):
    """Its word stays, though its heartbeat would go on."""
    two = team()
    two.start()
    two.monitors[1].finish()
    time.sleep(2 * TIMEOUT_S)
    assert two.lost == {}
    assert two.values["paceline/alive/1"] == "ended"
    two.monitors[1].stop()
    time.sleep(2 * TIMEOUT_S)
    assert two.lost == {}


def test_a_process_that_ended_still_notices_the_death_of_another(team):
    """It waits for the others to end; one of them dies meanwhile."""
    two = team()
    two.start()
    two.monitors[0].finish()
    time.sleep(0.1)
    two.monitors[1].stop()
    two.await_lost(0)
    assert "process 1 (m1)" in two.lost[0].what


def test_a_step_does_not_wait_for_a_peer_that_has_ended(team):
    """Process 1 left by sys.exit while process 0 is in a step that needs it."""
    two = team()
    two.monitors[0].where = lambda: "step 7 (step)"
    two.start()
    two.monitors[1].finish()
    two.await_lost(0)
    assert two.lost[0].what == f"process 1 (m1) has ended, and process 0 on {HERE} waits for it at step 7 (step)"
    assert "exit that depends on the process" in two.lost[0].fix


@pytest.mark.clock(reason="a live peer has 0.6 s to beat")
def test_a_process_that_advances_does_not_wait(team):
    """Its steps go on, so whatever ended is not needed."""
    two = team()
    two.monitors[0].where = lambda: f"step {time.monotonic()} (step)"
    two.start()
    two.monitors[1].finish()
    time.sleep(3 * TIMEOUT_S)
    assert two.lost == {}


@pytest.mark.clock(reason="it is named within a second")
def test_a_peer_that_failed_is_named_with_its_error(team):
    """At once, not after the time limit; the first line of its error only."""
    two = team()
    for monitor in two.monitors:
        monitor._timeout_s = 60.0
    two.start()
    two.monitors[1].fail("ValueError: the disk is gone\n  why: it was pulled")
    two.await_lost(0, within_s=1.0)
    assert (
        two.lost[0].what == f"process 1 (m1) ended with an error, and process 0 on {HERE} with it: "
        "ValueError: the disk is gone"
    )
    assert "output of that process" in two.lost[0].fix


def test_a_process_with_an_error_of_its_own_says_that_one(team):
    """Both fail: neither speaks of the other."""
    two = team()
    two.start()
    two.monitors[0].look_away()
    two.monitors[1].fail("ValueError: mine")
    time.sleep(0.3)
    assert two.lost == {}


def test_process_0_stays_until_its_peers_have_heard_of_its_error(team, monkeypatch):
    """The peer hears the error, ends in words, and process 0 goes on at once, not at the end of its notice."""
    two = team()
    monkeypatch.setattr(peers, "_NOTICE_S", 60.0)
    two.monitors[1]._on_lost = lambda error: (two.lost.setdefault(1, error), two.monitors[1].fail("lost"))
    two.start()
    start_s = time.monotonic()
    two.monitors[0].fail("ValueError: mine")
    assert 1 in two.lost and "ValueError: mine" in two.lost[1].what
    assert time.monotonic() - start_s < 10


@pytest.mark.clock(reason="it ends within two seconds")
def test_process_0_does_not_stay_for_ever(team):
    """A peer that does not answer keeps it for the time of a notice only."""
    two = team()
    two.monitors[0].start()
    start_s = time.monotonic()
    two.monitors[0].fail("ValueError: mine")
    assert time.monotonic() - start_s < 2


def test_all_hear_of_a_loss_that_process_0_noticed(team, monkeypatch):
    """Process 2 watches process 0 only, and still says that process 1 was lost."""
    three = team(3)
    ended = threading.Event()

    def exit_(code):
        assert code == 75
        ended.set()

    monkeypatch.setattr(peers.os, "_exit", exit_)
    three.monitors[0]._on_lost = three.monitors[0]._end
    three.start()
    time.sleep(0.1)
    three.monitors[1].stop()
    three.await_lost(2)
    assert three.lost[2].what.startswith(f"process 2 heard from process 0: process 0 on {HERE} has not heard from pro")
    assert ended.wait(2)


@pytest.mark.clock(reason="a live peer has 0.6 s to beat")
def test_missing_peers_are_found_by_their_heartbeats(team):
    """Of three others one fell silent; one that says that it failed is found at once."""
    four = team(4)
    four.start()
    time.sleep(0.1)
    four.monitors[1].stop()
    assert four.monitors[3].missing(wait=False) == {}
    assert four.monitors[3].missing(wait=True) == {1: ""}
    four.monitors[2].fail("ValueError: mine")
    assert four.monitors[3].missing(wait=False) == {2: "ValueError: mine"}


def test_a_process_that_is_ending_for_a_lost_peer_says_nothing_else(team, monkeypatch):
    """Its main thread, which the loss has reached too, waits for the end."""
    two = team()
    slept = []
    monkeypatch.setattr(peers.os, "_exit", lambda code: None)
    two.monitors[1]._end(PeerError(what="lost", why="", fix=""))
    monkeypatch.setattr(peers.time, "sleep", slept.append)
    two.monitors[1].look_away()
    assert slept == [10.0]
