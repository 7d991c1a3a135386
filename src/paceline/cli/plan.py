"""`paceline plan RECIPE_OR_FILE --on 8xH100`: does it fit, how fast, how efficient, what limits it; no GPU needed.

Owns: the options of the command, the devices of this process, what is printed and written.
Not here: the answers (`insight.plan`), the published table (`insight.published`).

Exit codes: 0 the step fits, 1 it does not, 2 a mistake in the command or no step can be made.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax

from paceline.base.errors import OptionError
from paceline.cli.job import make_job, parse_options, run_shape, target_of
from paceline.cli.options import early_value, with_value
from paceline.cli.reporting import reporting
from paceline.cli.step_options import StepOptions
from paceline.data.example import read_example
from paceline.engine.parallel import Parallel
from paceline.insight.compiling.cache import ProgramCache, default_folder
from paceline.insight.compiling.target import use_no_gpu
from paceline.insight.hardware.machine import Machine, parse_machine
from paceline.insight.plan.compare import DIMENSIONS, Dimension, compare, compare_lines, other_ask, ways
from paceline.insight.plan.curves import curves_for, curves_note
from paceline.insight.plan.document import plan_document
from paceline.insight.plan.place import choose_place
from paceline.insight.plan.plan import Ask, Plan, make_plan, rows_per_device
from paceline.insight.plan.programs import Programs, Workload
from paceline.insight.plan.words import plan_lines
from paceline.insight.published.table import published_lines, published_report
from paceline.recipes.find import find_recipe

_SIMULATED_AT_MOST = 64
"""CPU devices that stand in for GPUs; more would only cost memory here, and the rest follows by arithmetic."""


@dataclass(frozen=True)
class PlanOptions(StepOptions):
    """Options of `paceline plan`.

    Args:
      on: the machine, as 8xH100, 4xA100-40 or cpu: devices of one node.
      nodes: how many such nodes.
      network: between nodes, as 400GbE or '400Gb per GPU' (default: the device's usual one).
      link: between devices of a node, as NVLink3 or PCIe4 (default: the device's usual one).
      curves: file of `paceline scale --network --json`, measured on such a machine: its collectives come first.
      rate: measured samples/s of one device, in place of the predicted.
      input_rate: samples/s that the input of one node can make for its devices (default: it keeps up).
      samples: how many are to be trained on, for the time it takes.
      price: of one device for an hour, for the cost of --samples.
      noise_scale_rows: the gradient noise scale that a run reported, for statistical efficiency.
      compare: plan other ways beside it, one option changed at a time: all, or some of
        scheme,placement,precision,accumulation; without a value all.
      confirm: compile the largest batch instead of reading it off a line.
      cache: keep compiled programs, so that a second plan need not compile.
      json: write the plan to this file as one JSON object.
      config: TOML or YAML file with options; flags come before it.
      traceback: show Python's traceback for errors.
    """

    on: str | None = None
    nodes: int = 1
    network: str | None = None
    link: str | None = None
    curves: str | None = None
    rate: float | None = None
    input_rate: float | None = None
    samples: float | None = None
    price: float | None = None
    noise_scale_rows: float | None = None
    compare: str | None = None
    confirm: bool = False
    cache: bool = True
    json: str | None = None
    config: str | None = None
    traceback: bool = False


def run(arguments: list[str]) -> int:
    """Plan as the arguments say; returns the exit code."""
    if arguments and arguments[0] == "--published":
        return reporting(arguments, _published)
    return reporting(with_value(arguments, "compare", alone="all"), _plan)


def _published(arguments: list[str]) -> tuple[dict[str, Any], int]:
    """The table of published efficiencies beside what the model says without having seen their source."""
    known = {"--published", "--json", "--traceback"}
    for argument in arguments:
        if argument.startswith("--") and argument.partition("=")[0] not in known:
            raise OptionError(
                what=f"{argument} with --published",
                why="the table is that of published runs, whatever is planned",
                fix="leave it out; --json FILE writes the table to a file",
            )
    print("\n".join(published_lines()))
    return published_report(), 0


def _plan(arguments: list[str]) -> tuple[dict[str, Any], int]:
    target = target_of(arguments, command="plan")
    _prepare(arguments)
    recipe = find_recipe(target)
    options, own = parse_options(arguments[1:], recipe, target=target, command="plan", defaults=PlanOptions())
    machine = _machine(options)
    shape = run_shape(recipe, batch=options.batch, steps=None, epochs=None, seed=0)
    parallel = options.parallel()
    rows = rows_per_device(shape.batch, devices=machine.num_devices, accumulation=parallel.accumulation)
    dimensions = _dimensions(options.compare)
    curves = None if options.curves is None else curves_for(machine, options.curves)
    ask = Ask(
        shape.batch, options.rate, options.input_rate, options.samples, options.price, options.noise_scale_rows,
        options.confirm, curves=curves,
    )  # fmt: skip
    job = make_job(recipe, own, shape=shape)
    place = choose_place(machine)
    example = read_example(job.data)
    work = Workload(job.task, job.optimizer, example.structure, options.prefetch, example.source_rows)
    cache = ProgramCache(default_folder()) if options.cache else None
    programs = Programs(work, place, devices=machine.num_devices, cache=cache, say=_say)

    notes = place.notes if curves is None else (*place.notes, curves_note(curves))
    plan = make_plan(programs, machine, parallel=parallel, ask=ask, notes=notes)
    print("\n".join(plan_lines(plan)))
    config = {"target": target, "options": dataclasses.asdict(options), "recipe": dataclasses.asdict(own)}
    document: dict[str, Any] = {"plan": plan_document(plan), "config": config}
    if dimensions:

        def planned(other: Parallel) -> Plan:
            if other == parallel:
                return plan
            return make_plan(programs, machine, parallel=other, ask=other_ask(plan), notes=notes)

        compared = compare(planned, list(ways(parallel, dimensions, rows=rows)))
        print("\n".join(["", *compare_lines(compared)]))
        document["compare"] = [
            {"change": way.change, "plan": plan_document(way.plan) if way.plan else None, "why": way.why or None}
            for way in compared
        ]
    return document, 0 if plan.fits else 1


def _prepare(arguments: Sequence[str]) -> None:
    """This process opens no GPU, and has as many CPU devices as may have to stand in for them."""
    use_no_gpu()
    if early_value(list(arguments), "on") is None:
        return
    found = re.match(r"\s*(\d+)\s*[x×*]", early_value(list(arguments), "on") or "")
    nodes = early_value(list(arguments), "nodes") or "1"
    count = int(found[1] if found else 1) * (int(nodes) if nodes.isdigit() else 1)
    with contextlib.suppress(RuntimeError):  # JAX is in use already, by an embedding program: its devices must do
        jax.config.update("jax_num_cpu_devices", min(max(count, 1), _SIMULATED_AT_MOST))


def _machine(options: PlanOptions) -> Machine:
    if options.on is None:
        raise OptionError(
            what="paceline plan was not told for which machine",
            why="memory, speed and efficiency are those of its devices and of what joins them",
            fix="use --on 8xH100, with the devices of one node; --nodes 4 for four of them",
        )
    return parse_machine(options.on, nodes=options.nodes, network=options.network, link=options.link)


def _dimensions(text: str | None) -> list[Dimension]:
    """What ``--compare`` changes. Raises: OptionError: no such option."""
    if text is None:
        return []
    names = list(DIMENSIONS) if text == "all" else [name.strip() for name in text.split(",")]
    for name in names:
        if name not in DIMENSIONS:
            raise OptionError(
                what=f"--compare {text}: nothing is called {name!r}",
                why="it names the options that are changed one at a time",
                fix=f"use all, or some of {','.join(DIMENSIONS)}",
            )
    return [name for name in DIMENSIONS if name in names]


def _say(line: str) -> None:
    # One write: two threads compile, and `print` would write their line ends apart.
    sys.stderr.write(f"... {line}\n")
    sys.stderr.flush()
