"""Batches on their way, latency, memory: by pencil, on clocks that the test moves."""

from __future__ import annotations

import itertools
from collections import deque
from types import SimpleNamespace

import pytest

from paceline.data.feed import Taken
from paceline.telemetry.metrics import METRICS
from paceline.telemetry.reader import read_run
from paceline.train import vitals as vitals_module
from paceline.train.loop import AHEAD
from paceline.train.vitals import LOOK_EVERY_S, InFlight, Vitals
from tests.train.linear import line, trainer_of, zeros

LATENCY, FLIGHT = "speed/latency_s", "speed/rows_in_flight"
RESIDENT, IN_USE, PEAK = "memory/process_bytes", "memory/in_use_bytes", "memory/peak_bytes"


def taken(begun_s, *, make_s=0.25, place_s=0.5):
    return Taken("batch", 0.0, begun_s, make_s, place_s)


def test_the_mean_number_in_flight_is_the_area_over_the_time():
    """1 from 0 s, 2 from 2 s, 1 from 3 s: (2 x 1 + 1 x 2 + 1 x 1) / 4 until 4 s; then 1 until 6 s."""
    flight = InFlight()
    for at_s, by in ((0.0, 1), (2.0, 1), (3.0, -1)):
        flight.change(at_s, by)
    assert flight.mean(4.0) == 5 / 4
    assert flight.mean(6.0) == 1.0


def test_a_change_that_lies_ahead_waits_for_its_time():
    """Told at 1 s of a batch that begins at 2 s: none until 1.5 s, then 0.5 s none and 1 s one."""
    flight = InFlight()
    flight.change(2.0, 1)
    assert flight.mean(1.5) == 0.0
    assert flight.mean(3.0) == pytest.approx(1 / 1.5)


def test_two_threads_that_tell_out_of_order_spoil_no_later_mean():
    """A begin at 0.9 s told behind an end at 1 s counts from 1 s on, and for good."""
    flight = InFlight()
    for at_s, by in ((0.0, 1), (1.0, -1), (0.9, 1)):
        flight.change(at_s, by)
    assert flight.mean(2.0) == 1.0
    assert flight.mean(3.0) == 1.0


def pipeline(*, make_s, step_s, depth, ahead=2, count=200):
    """Begin and end of each batch of a thread that makes them, a queue of `depth`, and devices with `ahead` queued.

    Like the loop: a batch is taken once the one `ahead` + 1 before it is finished; taking it lets the next be begun.
    """
    begun, ended, taken_at = [], [], []
    made_s = 0.0
    for number in range(count):
        credit_s = taken_at[number - depth] if number >= depth else 0.0
        begun.append(max(made_s, credit_s))
        made_s = begun[-1] + make_s
        free_s = ended[number - ahead - 1] if number > ahead else 0.0
        taken_at.append(max(made_s, free_s, taken_at[-1] if taken_at else 0.0))
        ended.append(max(taken_at[-1], ended[-1] if ended else 0.0) + step_s)
    return begun, ended


@pytest.mark.parametrize(
    ("make_s", "step_s", "depth", "in_flight"),
    [(1e-3, 5e-3, 2, 5.0), (1e-3, 5e-3, 6, 9.0), (8e-3, 5e-3, 2, 1.625), (5e-3, 5e-3, 2, 2.0)],
    ids=["devices bind", "a deeper queue", "input binds", "as fast as each other"],
)
def test_latency_times_throughput_equals_the_rows_in_flight(make_s, step_s, depth, in_flight):
    """Little's law on a steady run, to 1e-9; the rows are counted, not computed from the other two.

    By pencil, in batches: depth + 3 where the devices bind, else (make + step) over make.
    """
    rows = 32
    flight = InFlight()
    values = Vitals([], in_flight=flight, clock=lambda: 0.0)
    begun, ended = pipeline(make_s=make_s, step_s=step_s, depth=depth)
    waiting = deque(begun)
    seen = []
    for number, (begun_s, ended_s) in enumerate(zip(begun, ended, strict=True)):
        while waiting and waiting[0] <= ended_s:
            flight.change(waiting.popleft(), 1)
        seen.append(values.of_step(taken(begun_s), rows=rows, ended_s=ended_s, follows_step=number > 0))
    steady = seen[100:180]
    latency_s = sum(step[LATENCY] for step in steady) / len(steady)
    rate = rows * len(steady) / (ended[179] - ended[99])
    counted = sum(step[FLIGHT] for step in steady) / len(steady)
    assert latency_s * rate == pytest.approx(counted, rel=1e-9)
    assert counted == pytest.approx(rows * in_flight, rel=1e-9)


def test_a_batch_that_waited_through_the_compilation_has_no_latency():
    """The first step, which holds the compilation, ended at 9 s: of batches begun at 1 and 9.5 s the second tells."""
    values = Vitals([], in_flight=InFlight(), clock=lambda: 0.0)
    first = values.of_step(taken(0.0), rows=4, ended_s=9.0, follows_step=False)
    assert LATENCY not in first and FLIGHT not in first
    second = values.of_step(taken(1.0), rows=4, ended_s=10.0, follows_step=True)
    assert LATENCY not in second and FLIGHT in second
    third = values.of_step(taken(9.5), rows=4, ended_s=11.0, follows_step=True)
    assert third[LATENCY] == 1.5
    assert (third["input/make_s"], third["input/place_s"]) == (0.25, 0.5)


class Device:
    """One whose memory statistics are given, and which counts how often it is asked."""

    def __init__(self, stats):
        self.stats, self.asked = stats, 0

    def memory_stats(self):
        self.asked += 1
        return self.stats


def looks(devices, *, times_s):
    clock = SimpleNamespace(now_s=0.0)
    values = Vitals(devices, in_flight=InFlight(), clock=lambda: clock.now_s)
    found = []
    for number, now_s in enumerate(times_s, start=1):
        clock.now_s = now_s
        found.append(values.of_step(taken(0.0), rows=1, ended_s=float(number), follows_step=True))
    return found


def test_memory_is_looked_at_once_a_second():
    """Steps each 0.4 s, from 100 s on: looked at at 100.0, 101.2 and 102.4; the largest of the two devices is told."""
    assert LOOK_EVERY_S == 1.0
    one, two = Device({"bytes_in_use": 5, "peak_bytes_in_use": 9}), Device({"bytes_in_use": 7, "peak_bytes_in_use": 8})
    found = looks([one, two], times_s=[100.0 + 0.4 * step for step in range(7)])
    assert [IN_USE in values for values in found] == [True, False, False, True, False, False, True]
    assert (found[0][IN_USE], found[0][PEAK]) == (7, 9)
    assert (one.asked, two.asked) == (3, 3)


def test_a_device_without_statistics_is_asked_once():
    """As a CPU: no values of devices; those of the process are there."""
    device = Device(None)
    found = looks([device], times_s=[0.0, 1.0, 2.0])
    assert device.asked == 1
    assert all(IN_USE not in values and values[RESIDENT] > 1e6 for values in found)


def test_resident_memory_is_what_the_system_says(monkeypatch, tmp_path):
    """Second number of statm, in pages of 4096 bytes or what the system has; nothing where there is no such file."""
    statm = tmp_path / "statm"
    monkeypatch.setattr(vitals_module, "_STATM", statm)
    assert RESIDENT not in looks([], times_s=[0.0])[0]
    statm.write_text("900 25 3 1 0 800 0\n")
    page_bytes = vitals_module.os.sysconf("SC_PAGE_SIZE")
    assert looks([], times_s=[0.0])[0][RESIDENT] == 25 * page_bytes


def test_a_run_writes_them_and_they_are_declared(tmp_path):
    """30 steps: input times in each, rows in flight in each that was timed, latency behind the first batches.

    All but the first are timed, and perhaps the next two: those that have ended when the first is looked at are not.
    """
    trainer = trainer_of(devices=2)
    trainer.fit(trainer.init(zeros()), line(), batch=16, steps=30, run=tmp_path / "run")
    events = [event for event in read_run(tmp_path / "run").events if event.kind == "step"]
    assert all(event.values["input/make_s"] > 0 and event.values["input/place_s"] > 0 for event in events)
    timed = ["speed/step_s" in event.values for event in events]
    assert [FLIGHT in event.values for event in events] == timed
    assert not timed[0] and all(timed[1 + AHEAD :])
    has_latency = [LATENCY in event.values for event in events]
    assert has_latency == sorted(has_latency) and 20 < sum(has_latency) < 30
    # At most: those in the queue, one in the making, those dispatched, the step itself.
    assert all(0 < event.values[FLIGHT] <= 16 * (2 + 1 + 2 + 1) for event in itertools.compress(events, timed))
    assert RESIDENT in events[0].values
    written = set(itertools.chain.from_iterable(event.values for event in events))
    assert {key for key in written if key.split("/")[0] in ("input", "speed", "memory")} <= set(METRICS)
