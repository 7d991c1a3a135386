"""Saves, evaluates and deletes without end until it is killed; started by `test_faults`."""

from __future__ import annotations

import sys

import jax.numpy as jnp


def main() -> None:
    from paceline.checkpoint.store import Store

    first = step = int(sys.argv[2])
    with Store(sys.argv[1], say=print, keep=2, best="max:evaluate/loss") as store:
        while True:
            step += 1
            state = {"small": jnp.full(50, step, jnp.float32), "large": jnp.full(300_000, step, jnp.float32)}
            store.save(state, step, meta={"step": step})
            store.evaluated(step, {"evaluate/loss": float(step % 3)})
            if step == first + 5:
                print("at work", flush=True)


if __name__ == "__main__":
    main()
