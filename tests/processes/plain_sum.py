"""A program of plain JAX for proving a cluster: sums the process indices over all processes, several times.

Owns: nothing of Paceline's: only names of environment variables come from it.
Not here: assertions; the test reads the lines that this prints, one JSON object a sum.
Invariant: under `srun` and `mpirun` JAX finds its peers by itself; else the variables of `paceline.base.launched` tell.

Usage: plain_sum.py FLOATS REPEATS [FOLDER]: with FOLDER, sum r (from 1) waits until the file FOLDER/r is there.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from paceline.base import launched


def join() -> None:
    """Connects the processes."""
    import jax

    if launched.COORDINATOR not in os.environ:
        jax.distributed.initialize(initialization_timeout=30)
        return
    jax.distributed.initialize(
        os.environ[launched.COORDINATOR],
        num_processes=int(os.environ[launched.NUM_PROCESSES]),
        process_id=int(os.environ[launched.PROCESS_INDEX]),
        initialization_timeout=30,
        heartbeat_timeout_seconds=100,
    )


def sums(floats: int, repeats: int, folder: Path | None) -> None:
    """Prints each sum and how long it took [s]; the first compiles and connects."""
    import jax
    import jax.numpy as jnp

    mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    split = jax.sharding.NamedSharding(mesh, jax.P("data"))
    total = jax.jit(
        jax.shard_map(lambda x: jax.lax.psum(x, "data"), mesh=mesh, in_specs=jax.P("data"), out_specs=jax.P())
    )
    mine = jnp.full((jax.local_device_count(), floats), jax.process_index(), jnp.float32)
    rows = jax.make_array_from_process_local_data(split, mine)
    for repeat in range(repeats):
        while folder is not None and repeat and not (folder / str(repeat)).exists():
            time.sleep(0.01)
        begin = time.perf_counter()
        value = float(jax.block_until_ready(total(rows)).addressable_data(0)[0, -1])
        line = {"process": jax.process_index(), "processes": jax.process_count(), "devices": jax.device_count()}
        say(
            line | {"repeat": repeat, "sum": value, "seconds": time.perf_counter() - begin, "host": os.uname().nodename}
        )


def say(line: dict) -> None:
    """One write a line: lines of several processes on one pipe stay whole."""
    os.write(1, (json.dumps(line) + "\n").encode())


if __name__ == "__main__":
    join()
    sums(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]) if len(sys.argv) > 3 else None)
