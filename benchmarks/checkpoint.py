"""Checkpoints: saved and restored beside bare Orbax, and what saving every 50 steps costs a loop.

Both sides save the same arrays of one device until they are on the disk, and restore them to that device. Bare Orbax is
`AsyncCheckpointer` with the default `PyTreeCheckpointHandler`: it compresses, and computes no checksums. Paceline
copies on the devices first, sums every leaf there, proves the sums when it restores, and deletes old checkpoints.
"""

from __future__ import annotations

import itertools
import resource
import shutil
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax

from benchmarks.measure import Row, alternate, say, speedup, spread, text_s, timed
from benchmarks.models import mlp
from paceline.checkpoint.reading import restore
from paceline.checkpoint.store import Store
from paceline.topology.mesh import data_mesh, replicated, split_rows

NAME = "checkpoint"
DEVICES = (2,)
EVERY = 50
"""Steps between two saves of the loop."""
_SIZES = {"40 leaves of 40 kB": (40, 10_000), "10 leaves of 40 MB": (10, 10_000_000)}


def measure(devices: int, *, quick: bool) -> Iterator[Row]:
    for name, (leaves, size) in _SIZES.items():
        say(f"  {name}")
        with tempfile.TemporaryDirectory() as folder:
            yield from _beside_orbax(name, _tree(leaves, size), Path(folder), repeats=3 if quick else 11)
    with tempfile.TemporaryDirectory() as folder:
        yield from _share_of_a_loop(devices, Path(folder), repeats=3 if quick else 9)


def _tree(leaves: int, size: int) -> dict[str, jax.Array]:
    random = np.random.default_rng(0)
    return {f"leaf{index}": jax.device_put(random.normal(size=size).astype(np.float32)) for index in range(leaves)}


def _beside_orbax(name: str, tree: dict[str, jax.Array], folder: Path, *, repeats: int) -> Iterator[Row]:
    import orbax.checkpoint as ocp  # most of a second, which `startup` must not see

    steps = itertools.count()
    with Store(folder / "ours", say=say, keep=1) as store, ocp.AsyncCheckpointer(ocp.PyTreeCheckpointHandler()) as bare:

        def ours() -> None:
            store.save(tree, next(steps), meta={})
            store.wait()

        def theirs() -> None:
            shutil.rmtree(folder / "bare", ignore_errors=True)
            bare.save(folder / "bare", args=ocp.args.PyTreeSave(tree))
            bare.wait_until_finished()

        def read_theirs() -> Any:
            wanted = {key: ocp.ArrayRestoreArgs(sharding=leaf.sharding) for key, leaf in tree.items()}
            return bare.restore(folder / "bare", args=ocp.args.PyTreeRestore(restore_args=wanted))

        sides = {
            "save": {"ours": timed(ours), "bare": timed(theirs)},
            "restore": {
                "ours": timed(lambda: restore(store.folder, like=tree).state),
                "bare": timed(read_theirs),
            },
        }
        for what, pair in sides.items():
            times = alternate(pair, repeats=repeats, limit_s=60)
            taken = f"{text_s(spread(times['ours']).median)} and {text_s(spread(times['bare']).median)}"
            compared = f"{what} / bare Orbax, {name}, until all is done: {taken}"
            yield Row(NAME, compared, speedup(times, "ours", over="bare"), at_least=0.9)


def _share_of_a_loop(devices: int, folder: Path, *, repeats: int) -> Iterator[Row]:
    """A loop with two steps in flight that saves its state every 50 steps, against one that does not."""
    model, optimizer = mlp([784, 1024, 1024], rows=1024), optax.adam(1e-3)
    mesh = data_mesh(jax.devices()[:devices])
    state = jax.device_put((model.params, optimizer.init(model.params)), replicated(mesh))
    batches = [jax.device_put(batch, split_rows(mesh)) for batch in model.batches]

    def update(state: Any, batch: Any) -> Any:
        params, opt_state = state
        loss, gradients = jax.value_and_grad(lambda tree: model.row_loss(tree, batch).mean())(params)
        updates, opt_state = optimizer.update(gradients, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), loss

    step, numbers = jax.jit(update, donate_argnums=0), itertools.count(1)
    blocked: list[float] = []
    with Store(folder, say=say, keep=1) as store:
        store.prepare(state)
        store.wait()

        def run(saves: bool) -> float:
            nonlocal state
            in_flight: deque[jax.Array] = deque()
            start_s = time.perf_counter()
            for number in range(1, 2 * EVERY + 1):
                state, loss = step(state, batches[number % len(batches)])
                in_flight.append(loss)
                if len(in_flight) > 2:
                    in_flight.popleft().block_until_ready()
                if saves and number % EVERY == 0:
                    save_s = time.perf_counter()
                    store.save(state, next(numbers), meta={"rows": number})
                    blocked.append(1e3 * (time.perf_counter() - save_s))
            in_flight[-1].block_until_ready()
            taken = time.perf_counter() - start_s
            store.wait()
            return taken

        def save_alone() -> float:
            nonlocal state
            state, loss = step(state, batches[0])
            jax.block_until_ready((state, loss))
            start_s = _cpu_s()
            store.save(state, next(numbers), meta={})
            store.wait()
            return 1e3 * (_cpu_s() - start_s)

        times = alternate({"with": lambda: run(True), "without": lambda: run(False)}, repeats=repeats, limit_s=90)
        used = [save_alone() for _ in range(2 * repeats)]
    bare_s = spread(times["without"]).median / (2 * EVERY)
    what = f"MLP 784-1024-1024 with adam on {devices} devices"
    compared = f"saving every {EVERY} steps of {text_s(bare_s)}: time that a loop takes more, {what}"
    yield Row(NAME, compared, _more(times), "%", at_most=2.0)
    yield Row(NAME, f"time for which one save holds up the loop, {what}", spread(blocked), "ms")
    yield Row(NAME, f"processor time of one save, {what}", spread(used), "ms")


def _more(times: dict[str, list[float]]) -> Any:
    return spread(100 * (a / b - 1) for a, b in zip(times["with"], times["without"], strict=True))


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
