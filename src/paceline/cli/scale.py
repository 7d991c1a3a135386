"""`paceline scale RECIPE_OR_FILE`: throughput and efficiency on 1 ... K devices, and where the rest of the time goes.

Owns: the options of the command, which devices are measured and by which processes, what is written.
Not here: measuring and its arithmetic (`measure.scale`), the process of some simulated devices (`cli.scale_process`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import jax

from paceline.base.errors import DeviceError, OptionError
from paceline.base.figures import PAGES, FigureError, check_figure
from paceline.base.units import format_count, format_duration, format_percent
from paceline.cli.job import check_count, make_job, parse_options, run_shape, target_of
from paceline.cli.reporting import reporting
from paceline.cli.step_options import StepOptions
from paceline.measure.scale.cores import core_quota, environment, not_claimed, physical_cores, usable_cores
from paceline.measure.scale.figure import write_figure
from paceline.measure.scale.load import BUSY, OtherLoad
from paceline.measure.scale.page import write_page
from paceline.measure.scale.prediction import Planned, read_plan
from paceline.measure.scale.result import PlanNotes, ScaleResult, make_scaling
from paceline.measure.scale.rounds import Rounds, Setting, check_numbers, settings_of
from paceline.measure.scale.station import HereStation, ProcessStation, Station
from paceline.measure.scale.subject import Mode, Subject, own_options
from paceline.measure.scale.trace import TRACED_STEPS, DeviceTimes, find_trace, read_trace
from paceline.recipes.find import find_recipe
from paceline.recipes.recipe import Recipe


@dataclass(frozen=True)
class ScaleOptions(StepOptions):
    """Options of `paceline scale`.

    Args:
      devices: numbers of devices to measure, such as 1,2,4 (default: 1, 2, 4 ... up to all there are). One is always
        measured.
      mode: the rows of a device fixed (weak), the rows of all devices fixed (strong), or both.
      simulate: measure on so many simulated CPU devices at most, even where there are accelerators.
      repeats: measurements of each number, at most.
      seconds: time to measure in, compilation left out; at least 3 repeats are made.
      shuffle: a new order of rows in each epoch.
      seed: of parameters, data order and dropout.
      plan: JSON file of paceline plan, whose prediction is printed beside what is measured.
      profile: folder for traces of the profiler, from which stage times are printed too.
      network: measure collectives by message size too, on the most devices.
      figure: draw the result into this file (.png or .svg).
      html: write the result to this file as one HTML page.
      json: write the result to this file as one JSON object.
      config: TOML or YAML file with options; flags come before it.
      traceback: show Python's traceback for errors.
    """

    devices: tuple[int, ...] | int | str = ()
    mode: Literal["weak", "strong", "both"] = "weak"
    simulate: int | None = None
    repeats: int = 15
    seconds: float = 60.0
    shuffle: bool = True
    seed: int = 0
    plan: str | None = None
    profile: str | None = None
    network: bool = False
    figure: str | None = None
    html: str | None = None
    json: str | None = None
    config: str | None = None
    traceback: bool = False

    @property
    def modes(self) -> tuple[Mode, ...]:
        """What is asked for."""
        return ("weak", "strong") if self.mode == "both" else (self.mode,)


def run(arguments: list[str]) -> int:
    """Measure as the arguments say; returns the exit code.

    Figure and page come last: they take foreign code, and what it raises must cost nothing that was measured.
    """
    found: list[ScaleResult] = []
    asked: list[ScaleOptions] = []

    def measured(arguments: list[str]) -> tuple[dict[str, Any], int]:
        with own_options():
            read = read_arguments(arguments)
            asked.append(read.options)
            result = _scale(read, arguments)
        print("\n".join(result.lines()))
        found.append(result)
        config = {"target": read.target, "options": dataclasses.asdict(read.options),
                  "recipe": dataclasses.asdict(read.recipe_options)}  # fmt: skip
        return {**result.as_dict(), "config": config}, 0

    code = reporting(arguments, measured)
    _draw(found[0], asked[0])
    return code


@dataclass(frozen=True)
class Scaled:
    """What the arguments say, for the command and for its processes alike."""

    target: str
    recipe: Recipe
    options: ScaleOptions
    recipe_options: Any

    def subject(self, batch: int) -> Subject:
        """The task for a global batch of so many rows."""
        options = self.options
        shape = run_shape(self.recipe, batch=batch, steps=None, epochs=None, seed=options.seed)
        job = make_job(self.recipe, self.recipe_options, shape=shape)
        return Subject(
            job.task, job.optimizer, job.data, job.schedule, parallel=options.parallel(), prefetch=options.prefetch,
            shuffle=options.shuffle, seed=options.seed,
        )  # fmt: skip


def read_arguments(arguments: list[str]) -> Scaled:
    """The task and the options."""
    target = target_of(arguments, command="scale")
    recipe = find_recipe(target)
    options, recipe_options = parse_options(
        _with_commas_split(arguments[1:]), recipe, target=target, command="scale", defaults=ScaleOptions()
    )
    return Scaled(target, recipe, dataclasses.replace(options, devices=_numbers(options.devices)), recipe_options)


def _numbers(devices: tuple[int, ...] | int | str) -> tuple[int, ...]:
    """What ``--devices`` or an entry of a file says: ``(1, 2)``, ``2``, ``"1,2"``."""
    if isinstance(devices, int):
        return (devices,)
    if not isinstance(devices, str):
        return tuple(devices)
    try:
        found = tuple(int(part) for part in devices.split(",") if part.strip())
    except ValueError:
        found = ()
    if not found:
        raise OptionError(
            what=f"--devices {devices}",
            why="it lists numbers of devices",
            fix="use --devices 1,2,4, or leave it out for 1, 2, 4 ... up to all there are",
        )
    return found


def _with_commas_split(arguments: Sequence[str]) -> list[str]:
    """``--devices 1,2,4`` as ``--devices 1 2 4``."""
    full: list[str] = []
    for argument in arguments:
        flag, _, value = argument.partition("=")
        after_flag = bool(full) and full[-1] == "--devices" and "," in argument
        if flag == "--devices" and value:
            full += [flag, *_parts(value)]
        elif after_flag:
            full += _parts(argument)
        else:
            full.append(argument)
    return full


def _parts(text: str) -> list[str]:
    """``1,2`` as two; a list of nothing as it is, to be refused."""
    return [part for part in text.split(",") if part] or [text]


def _scale(asked: Scaled, arguments: list[str]) -> ScaleResult:
    start_s = time.perf_counter()
    options = asked.options
    _check(options)
    planned = None if options.plan is None else read_plan(options.plan)
    if planned is not None:
        planned.check_target(asked.target)
    bench = _benches(options, arguments)
    _check_network(options, bench)
    batch = options.batch or asked.recipe.batch
    modes: dict[Mode, list[Setting]] = {
        mode: settings_of(mode, bench.counts, batch=batch, microbatches=options.accumulation) for mode in options.modes
    }
    settings = sorted({setting for found in modes.values() for setting in found})
    with ExitStack() as stack:
        stations = {count: stack.enter_context(_opened(bench.station, count, asked)) for count in bench.counts}
        rounds = Rounds(stations, settings, frozenset(bench.unclaimed), say=_say)
        rounds.prepare()
        load = OtherLoad(bench.cores, [one.process_id for one in stations.values() if isinstance(one, ProcessStation)])
        rounds.measure(repeats=options.repeats, seconds=options.seconds)
        others = load.share()
        noise = stations[settings[-1].devices].noise(settings[-1].batch) if options.noise_scale else None
        traces = _traces(options.profile, stations, settings)
        network = stations[bench.counts[-1]].network() if options.network else None
    scalings = tuple(
        make_scaling(mode, found, measured=rounds.samples, not_claimed=bench.unclaimed.get, planned=planned,
                     noise=noise, shares_cores=bool(bench.cores))
        for mode, found in modes.items()
    )  # fmt: skip
    return ScaleResult(
        task=asked.recipe.name, platform=bench.platform, rounds=rounds.rounds, scalings=scalings,
        conditions=_conditions(options, bench, rounds, total_s=time.perf_counter() - start_s, others=others),
        total_s=time.perf_counter() - start_s, noise=noise, traces=traces,
        other_load=others, network=None if network is None else network.curves,
        network_lines=() if network is None else network.lines,
        plan=None if planned is None else _plan_notes(planned, asked, bench, settings),
    )  # fmt: skip


def _plan_notes(planned: Planned, asked: Scaled, bench: _Benches, settings: list[Setting]) -> PlanNotes:
    options = dataclasses.asdict(asked.recipe_options)
    return PlanNotes(
        planned.machine,
        planned.differences(settings, parallel=asked.options.parallel(), kind=bench.kind, task_options=options),
    )


def _check(options: ScaleOptions) -> None:
    """Refuse, before anything is compiled, what would fail in the end."""
    for name in ("batch", "prefetch", "simulate"):
        check_count(name, getattr(options, name))
    check_numbers(repeats=options.repeats, seconds=options.seconds)
    options.parallel()
    if options.figure is not None:
        check_figure(options.figure, flag="figure")
    if options.html is not None:
        check_figure(options.html, flag="html", endings=PAGES)
    if options.profile is not None and Path(options.profile).is_file():
        raise OptionError(
            what=f"--profile {options.profile} is a file",
            why="traces lie in a folder",
            fix="choose a folder, which may be new",
        )


def _check_network(options: ScaleOptions, bench: _Benches) -> None:
    """Refuse what one device has none of, before anything is measured."""
    if options.network and bench.counts[-1] == 1:
        raise DeviceError(
            what="--network with one device: it has no network to measure",
            why="collectives need at least two devices",
            fix="use --devices 1,2 or more (--simulate 2 where there is one device), or leave --network out",
        )


@dataclass(frozen=True)
class _Benches:
    """What is measured on.

    Args:
      counts: numbers of devices, in rising order, the first is 1.
      unclaimed: why no efficiency is claimed, by number of devices.
      station: makes the station of so many devices.
      platform: for people.
      kind: of the devices, as JAX names it; ``cpu`` for simulated ones.
      notes: conditions, as sentences.
      cores: that simulated devices run on; empty for accelerators.
    """

    counts: tuple[int, ...]
    unclaimed: Mapping[int, str]
    station: Callable[[int, Scaled], Station]
    platform: str
    kind: str
    notes: tuple[str, ...]
    cores: tuple[int, ...] = ()


def _benches(options: ScaleOptions, arguments: list[str]) -> _Benches:
    if options.simulate is None and jax.default_backend() != "cpu":
        return _accelerators(options)
    cores, quota = usable_cores(), core_quota()
    most = options.simulate or max(1, len(cores))
    counts, notes = _counts(_numbers(options.devices), most=most if options.simulate or not options.devices else None)
    unclaimed = {count: why for count in counts if (why := not_claimed(count, cores, quota=quota)) is not None}
    claimed = [count for count in counts if count not in unclaimed]
    if claimed:
        notes.append("one core a device: each number of devices in a process of its own, held to as many cores")
    if claimed and claimed[-1] > physical_cores(cores[: claimed[-1]]):
        notes.append(f"{claimed[-1]} devices are on hyper-threads that share physical cores")
    station = functools.partial(_process_station, arguments, cores)
    return _Benches(
        counts,
        unclaimed,
        station,
        f"simulated CPU devices, {format_count(len(cores), 'core')}",
        "cpu",
        tuple(notes),
        tuple(cores[: counts[-1]]),
    )


def _accelerators(options: ScaleOptions) -> _Benches:
    devices = jax.devices()
    counts, notes = _counts(_numbers(options.devices), most=len(devices))
    station = lambda count, asked: HereStation(asked.subject, devices[:count])  # noqa: E731 - two arguments of three
    kind = devices[0].device_kind
    return _Benches(counts, {}, station, f"{devices[0].platform} ({kind})", kind, tuple(notes))


def _counts(asked: Sequence[int], *, most: int | None) -> tuple[tuple[int, ...], list[str]]:
    """The numbers of devices; one is among them.

    Args:
      most: that there are; None: any number can be simulated.
    """
    if not asked:
        assert most is not None, "without a list the devices there are say how many"
        powers = [2**power for power in range(most.bit_length()) if 2**power <= most]
        asked = [*powers, most]
    counts = sorted(set(asked))
    if counts[0] < 1:
        raise OptionError(what=f"--devices {counts[0]}", why="it counts things", fix="use --devices 1 or more")
    if most is not None and counts[-1] > most:
        raise DeviceError(
            what=f"{counts[-1]} devices asked for, {most} there",
            why="what is not there cannot be measured",
            fix=f"use --devices {','.join(str(count) for count in counts if count <= most) or most}",
        )
    if counts[0] == 1:
        return tuple(counts), []
    return (1, *counts), ["one device was added: efficiency is measured against it"]


def _process_station(arguments: list[str], cores: list[int], count: int, asked: Scaled) -> Station:
    """A process with so many simulated devices, on the first cores."""
    del asked
    own = ",".join(map(str, cores[:count]))
    command = [sys.executable, "-m", "paceline.cli.scale_process", str(count), own, *arguments]
    return ProcessStation(command, environment=environment(os.environ), name=format_count(count, "device"))


@contextlib.contextmanager
def _opened(make: Callable[[int, Scaled], Station], count: int, asked: Scaled) -> Iterator[Station]:
    station = make(count, asked)
    try:
        yield station
    finally:
        station.close()


def _traces(
    folder: str | None, stations: Mapping[int, Station], settings: Sequence[Setting]
) -> dict[int, list[DeviceTimes]]:
    """Times from the profiler, of the largest batch of each number of devices."""
    if folder is None:
        return {}
    found: dict[int, list[DeviceTimes]] = {}
    for setting in settings:  # in rising order, so the largest batch comes last
        own = str(Path(folder).absolute() / f"{setting.devices}-devices")
        stations[setting.devices].trace(setting.batch, own, steps=TRACED_STEPS)
        path = find_trace(own)
        found[setting.devices] = [] if path is None else read_trace(path, steps=TRACED_STEPS)
    return found


def _conditions(
    options: ScaleOptions, bench: _Benches, rounds: Rounds, *, total_s: float, others: float | None
) -> tuple[str, ...]:
    how = f"{options.scheme}, {options.placement}, {options.precision}"
    if options.accumulation > 1:
        how += f", {options.accumulation} microbatches"
    steps = [rounds.steps[setting] for setting in rounds.settings]
    span = f"{min(steps)}" if min(steps) == max(steps) else f"{min(steps)} to {max(steps)}"
    busy = () if others is None or others < BUSY else (
        f"THE MACHINE WAS BUSY: other programs used {format_percent(others)} of these cores meanwhile, so intervals "
        "are wide and efficiency may be off",
    )  # fmt: skip
    return (
        *busy,
        f"{how}; jax {jax.__version__}",
        f"{format_count(rounds.rounds, 'repeat')} in turn, of {span} steps; {format_duration(total_s)}, of it "
        f"compiling {format_duration(rounds.compile_s)}",
        *bench.notes,
        *((f"compute, waiting and communication are one term, {rounds.no_local}",) if rounds.no_local else ()),
    )


def _draw(result: ScaleResult, options: ScaleOptions) -> None:
    """Figure and page, each whether or not the other fails. Raises: FigureError: the first that failed."""
    failed: list[FigureError] = []
    for name, path, write in (("figure", options.figure, write_figure), ("page", options.html, write_page)):
        if path is None:
            continue
        try:
            write(result, path)
        except FigureError as error:
            failed.append(error)
        else:
            print(f"{name}: {path}")
    if failed:
        raise failed[0]


def _say(text: str) -> None:
    """Progress, where someone watches."""
    if sys.stderr.isatty():
        print(text, file=sys.stderr, flush=True)
