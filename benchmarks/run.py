"""Measures and writes the table: ``python benchmarks/run.py --out docs/benchmarks.md [--quick] [--only NAME]``.

Owns: which benchmarks there are, one process a benchmark and number of devices, the page.
Hardware: any machine; the devices are simulated on its processors. Time: 20 minutes, with --quick 5.

Each measurement has a process of its own, because the number of simulated devices is fixed when the first is used.
Nothing else should run meanwhile: ratios of neighbours in time survive a changing load, but it widens their quartiles.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from benchmarks.measure import Row, machine, row_from_dict, say  # noqa: E402 - needs the path above

BENCHMARKS = (
    "startup", "loop_overhead", "tutorial_loop", "handwritten", "input_wait", "telemetry", "audit", "saving",
    "checkpoint", "processes", "watch", "page",
)  # fmt: skip

_PAGE = """\
# Speed

`make bench` measures it anew and writes this page. The numbers are those of one run on
{machine}. {load}

A ratio is of throughputs, measured in one process with the two sides in turn: the median over repeats [first quartile,
third quartile]. Devices are simulated: K devices share these cores, so work of the host that a GPU would hide is in
the ratios here. "Within noise": the median misses the target, the better quartile meets it. Hand-written loops do the
same mathematics as a step of Paceline, but have no gradient norm, no finite check, no counters and no padding mask.

| benchmark | what is compared | value [quartiles] | target | met |
|---|---|---|---|---|
{rows}
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="Markdown page to write (default: standard output)")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter repeats: wider quartiles")
    parser.add_argument("--only", choices=BENCHMARKS, help="one benchmark")
    parser.add_argument("--worker", type=int, metavar="DEVICES", help="measure here, rows as JSON (used by run.py)")
    options = parser.parse_args()
    if options.worker is not None:
        _work(options.only, options.worker, quick=options.quick)
        return 0
    return _measure_all(options)


def _work(name: str, devices: int, *, quick: bool) -> None:
    """Measures one benchmark on so many devices; one JSON object a row on standard output."""
    import paceline  # the parent process needs neither paceline nor jax

    paceline.simulate_devices(devices)
    for row in importlib.import_module(f"benchmarks.{name}").measure(devices, quick=quick):
        say(f"  {_line(row)}")
        print(json.dumps(dataclasses.asdict(row)), flush=True)


def _measure_all(options: argparse.Namespace) -> int:
    start_s, load_before = time.perf_counter(), os.getloadavg()[0]
    rows, failed = [], False
    for name in [options.only] if options.only else BENCHMARKS:
        for devices in importlib.import_module(f"benchmarks.{name}").DEVICES:
            say(f"{name}, {devices} device{'s' if devices > 1 else ''}")
            found, code = _in_process(name, devices, quick=options.quick)
            rows += found
            failed |= code != 0
    kind = "quick" if options.quick else "full"
    load = f"Load average {load_before:.1f} before and {os.getloadavg()[0]:.1f} after; {kind} run."
    page = _PAGE.format(machine=machine(), load=load, rows="\n".join(_line(row) for row in rows))
    if options.out is None:
        print(page)
    else:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(page, encoding="utf-8")
    say(f"{len(rows)} rows in {time.perf_counter() - start_s:.0f} s; see {options.out or 'above'}")
    return int(failed)


def _in_process(name: str, devices: int, *, quick: bool) -> tuple[list[Row], int]:
    command = [sys.executable, __file__, "--only", name, "--worker", str(devices), *(["--quick"] if quick else [])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        say(f"{name} on {devices} devices failed with exit code {done.returncode}")
    return [row_from_dict(json.loads(line)) for line in done.stdout.splitlines()], done.returncode


def _line(row: Row) -> str:
    target = "" if row.at_least is None else f">= {row.at_least:g}"
    target = target if row.at_most is None else f"<= {row.at_most:g}"
    unit = "" if row.unit == "x" else f" {row.unit}"
    value = f"{row.value.median:.3g} [{row.value.low:.3g}, {row.value.high:.3g}]{unit}"
    return f"| {row.benchmark} | {row.compared} | {value} | {target} | {row.met()} |"


if __name__ == "__main__":
    sys.exit(main())
