"""The process in which `paceline scale` measures some simulated devices: one core a device, and nothing else to do.

    python -m paceline.cli.scale_process DEVICES CORES ARGUMENTS_OF_SCALE...

Owns: what must happen before jax starts its threads, the channel to the command.
Not here: the orders (`measure.scale.station`).
Invariant: standard output carries answers only; what the task prints goes to standard error.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from paceline.base.errors import PacelineError
from paceline.measure.scale.cores import hold_to


def main(arguments: list[str]) -> None:
    """Serve until standard input ends."""
    devices, cores, *own = arguments
    hold_to([int(core) for core in cores.split(",") if core])
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    _serve(int(devices), own, lambda line: print(line, file=channel, flush=True))


def _serve(devices: int, arguments: list[str], answer: Callable[[str], None]) -> None:
    # Only now: importing jax starts threads, which keep the cores that they were started on.
    from paceline.cli.scale import read_arguments
    from paceline.measure.scale.station import HereStation, refuse, serve
    from paceline.topology.devices import simulate_devices

    chosen = simulate_devices(devices)
    try:
        station = HereStation(read_arguments(arguments).subject, chosen)
    except PacelineError as error:
        refuse(error, orders=sys.stdin, answer=answer)
        return
    serve(station, orders=sys.stdin, answer=answer)


if __name__ == "__main__":
    main(sys.argv[1:])
