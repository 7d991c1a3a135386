"""What the comparison of replicas costs: beside a plain sum over the same bytes, of a run, and once for its program."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import PartitionSpec

from benchmarks.measure import Row, Spread, alternate, say, speedup, spread, text_s, timed
from benchmarks.models import mlp
from benchmarks.paced import Paced
from paceline.check.audit import replicas
from paceline.check.fingerprint import fingerprints
from paceline.topology.mesh import data_mesh, replicated

NAME = "audit"
DEVICES = (2, 4)
WORDS = 250_000_000
"""1 GB of float32 over all devices."""
EVERY = 500
"""The default interval of audits."""


def measure(devices: int, *, quick: bool) -> Iterator[Row]:
    yield _beside_a_sum(devices, quick=quick)
    paced = Paced(mlp([784, 512, 512], rows=512), optax.adam(1e-3), devices=devices)
    yield _share_of_a_run(paced, devices, quick=quick)
    yield _first_audit(paced, devices)
    yield _short_run(paced, devices, quick=quick)


def _beside_a_sum(devices: int, *, quick: bool) -> Row:
    """The audit program against `jnp.sum` of each leaf on each device: five leaves, the largest half of the bytes."""
    mesh = data_mesh(jax.devices()[:devices])
    sizes = [WORDS // devices // part for part in (2, 4, 8, 16, 16)]
    random = np.random.default_rng(0)
    leaves = tuple(jax.device_put(random.normal(size=n).astype(np.float32), replicated(mesh)) for n in sizes)
    whole = PartitionSpec()

    def sums(*own: jax.Array) -> jax.Array:
        return jax.lax.all_gather(jnp.stack([jnp.sum(leaf) for leaf in own]), "data")

    plain = jax.jit(jax.shard_map(sums, mesh=mesh, in_specs=whole, out_specs=whole, check_vma=False))
    specs = (whole,) * len(leaves)
    times = alternate(
        {
            "sum": timed(lambda: plain(*leaves)),
            "audit": timed(lambda: fingerprints(leaves, mesh=mesh, specs=specs)),
        },
        repeats=5 if quick else 21,
    )
    taken = " and ".join(text_s(spread(times[name]).median) for name in ("audit", "sum"))
    return Row(
        NAME, f"audit / plain sum, 1 GB of float32 in all on {devices} devices: {taken}",
        speedup(times, "sum", over="audit"), at_most=1.5,
    )  # fmt: skip


def _share_of_a_run(paced: Paced, devices: int, *, quick: bool) -> Row:
    """One audit of the state, from call to result, over the steps between two of them."""
    step_s = paced.run_bare(paced.placed, steps=15, place=lambda batch: batch.data)
    times = alternate({"audit": timed(lambda: replicas(paced.state))}, repeats=5 if quick else 21)["audit"]
    share = spread(100 * audit_s / (EVERY * step_s) for audit_s in times)
    at = f"{text_s(spread(times).median)} every {EVERY} steps of {text_s(step_s)}"
    return Row(NAME, f"share of a run, MLP 784-512-512 with adam on {devices} devices: {at}", share, "%", at_most=0.1)


def _first_audit(paced: Paced, devices: int) -> Row:
    """What the first audit of a process compiles, after a bare step's program."""
    leaves = len(jax.tree.leaves(paced.state))
    taken = []
    for _ in range(3):
        jax.clear_caches()
        start_s = time.perf_counter()
        replicas(paced.state)
        taken.append(1e3 * (time.perf_counter() - start_s))
    return Row(NAME, f"first audit of {leaves} leaves on {devices} devices, its program compiled", spread(taken), "ms")


def _short_run(paced: Paced, devices: int, *, quick: bool) -> Row:
    """Whole calls of fit of about a second, programs there: an audit at the start and one at the end, or none."""
    batches = paced.model.batches
    step_s = paced.run_bare(paced.placed, steps=15, place=lambda batch: batch.data)
    steps = max(5, round(1 / step_s))

    def run(every: int) -> Callable[[], float]:
        data: Any = [batches[number % len(batches)] for number in range(steps)]
        return timed(lambda: paced.fit(iter(data), steps=steps, audit_every=every))

    times = alternate({"with": run(EVERY), "without": run(0)}, repeats=3 if quick else 15, limit_s=60)
    say(f"  {steps} steps: {text_s(spread(times['with']).median)} and {text_s(spread(times['without']).median)}")
    return Row(NAME, f"fit of a second with audits / without, {devices} devices", _ratio(times))


def _ratio(times: dict[str, list[float]]) -> Spread:
    return spread(audited / bare for audited, bare in zip(times["with"], times["without"], strict=True))
