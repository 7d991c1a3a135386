"""A script of a user's that one process leaves in another way than the rest.

Usage: leaving.py CASE: `raise`, `exit`, `kill` behind the process that does it; see `main`.
"""

from __future__ import annotations

import os
import signal
import sys
import time

import jax
import optax

import paceline
from tests.processes.mlp import BATCH, Points, init, loss


def main(case: str, who: int) -> None:
    """`late`: the process `who` has nothing to do and is the first to end. `own`: joined by JAX itself."""
    if case == "own":
        names = ("PACELINE_COORDINATOR", "PACELINE_NUM_PROCESSES", "PACELINE_PROCESS_INDEX")
        address, count, index = (os.environ.pop(name) for name in names)
        jax.distributed.initialize(address, int(count), int(index))
        team = paceline.initialize()
    else:
        team = paceline.initialize(peer_timeout_s=2.0)
    if case == "late":
        if team.index != who:
            time.sleep(5.0)
        print("done", flush=True)
        return

    def leave(step: int, values: dict) -> None:
        if team.index == who and step == 3:
            print("leaving", flush=True)
            if case == "raise":
                raise ValueError("the disk is gone")
            if case == "exit":
                sys.exit(3)
            if case == "kill":
                os.kill(os.getpid(), signal.SIGKILL)

    trainer = paceline.Trainer(paceline.task(loss, init=init, name="mlp"), optax.sgd(0.1))
    steps = 12 if case == "own" else 100_000
    trainer.fit(trainer.init(), Points(), batch=BATCH, steps=steps, callbacks=[leave])
    print("done", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
