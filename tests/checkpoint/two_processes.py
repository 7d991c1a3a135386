"""One of two processes that save and restore together; started by `test_processes`, prints what it found as JSON."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import jax


def main() -> None:
    port, process, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    jax.config.update("jax_num_cpu_devices", 2)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=2, process_id=process)
    found = {task.__name__: task(folder, process) for task in (save, read, damaged, full, silent)}
    print(json.dumps(found), flush=True)
    os._exit(0)  # a process that leaves in order waits for its peer


def _state():
    """A state whose split leaves lie in parts with both processes, and one whose leaves of another seed fill it."""
    import tests.checkpoint.states as states

    return states.single(seed=3), lambda placement, seed: _place(states.single(seed=seed), placement)


def _place(state, placement):
    import numpy as np

    import tests.checkpoint.states as states
    from paceline.engine.placement import state_shardings
    from paceline.topology.mesh import data_mesh

    shardings = state_shardings(state, parallel=states.parallel(placement=placement), mesh=data_mesh(jax.devices()))

    def put(leaf, sharding):
        if jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            data = np.asarray(jax.random.key_data(leaf))
            made = jax.make_array_from_callback(data.shape, sharding, lambda index: data[index])
            return jax.jit(jax.random.wrap_key_data, out_shardings=sharding)(made)
        host = np.asarray(leaf)
        return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])

    return jax.tree.map(put, state, shardings)


def _equal(one, single):
    """Whether every part that this process holds is that of the single state."""
    import numpy as np

    def data(leaf):
        key = jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        return jax.random.key_data(leaf) if key else leaf

    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(single), strict=True):
        whole = np.asarray(data(b))
        for shard in data(a).addressable_shards:
            if np.asarray(shard.data).tobytes() != np.ascontiguousarray(whole[shard.index]).tobytes():
                return False
    return True


def save(folder: Path, process: int) -> dict:
    """Save under `fsdp` while steps that reduce over all devices go on, then restore what was saved."""
    from paceline.checkpoint.reading import restore
    from paceline.checkpoint.store import Store

    single, place = _state()
    said: list[str] = []
    step = jax.jit(lambda state: jax.tree.map(lambda leaf: leaf, state), donate_argnums=0)
    total = jax.jit(lambda state: sum(leaf.sum() for leaf in jax.tree.leaves(state.params)))
    with Store(folder / "saved", say=said.append, limit_s=60) as store:
        state = place("fsdp", 3)
        for number in (1, 2):
            store.save(state, number, meta={"number": number})
            for _ in range(5):
                state = step(state)
                total(state).block_until_ready()
        store.wait()
        failure = None if store.failure is None else str(store.failure)
    restored = restore(folder / "saved", like=place("fsdp", 0), say=said.append)
    return {"failure": failure, "equal": _equal(restored.state, single), "step": restored.step, "said": said}


def read(folder: Path, process: int) -> dict:
    """Restore what one process saved, in each placement."""
    from paceline.checkpoint.reading import restore

    single, place = _state()
    found = [restore(folder / "one", like=place(name, 0)) for name in ("replicated", "zero1", "fsdp")]
    return {"equal": [_equal(one.state, single) for one in found], "steps": [one.step for one in found]}


def damaged(folder: Path, process: int) -> dict:
    """Restore where process 1 alone is told that the newest is damaged."""
    import numpy as np
    from jax.experimental import multihost_utils

    from paceline.checkpoint.reading import restore

    single, place = _state()
    said: list[str] = []
    verdicts: list[bool] = []

    def agree(own: bool) -> bool:
        own = own and not (process == 1 and not verdicts)
        verdicts.append(own)
        return bool(np.all(multihost_utils.process_allgather(np.array(own))))

    restored = restore(folder / "one", like=place("fsdp", 0), say=said.append, agree=agree)
    return {"step": restored.step, "equal": _equal(restored.state, single), "said": said}


def full(folder: Path, process: int) -> dict:
    """Save where process 1 cannot write: both hear of it, and the next save works."""
    from paceline.checkpoint import arrays, files
    from paceline.checkpoint.store import Store

    _, place = _state()
    said: list[str] = []
    write = arrays.write

    def refuse(*args, **kwargs):
        if process == 1:
            raise OSError(28, "No space left on device")
        write(*args, **kwargs)

    with Store(folder / "full", say=said.append, limit_s=60) as store:
        state = place("fsdp", 3)
        arrays.write = refuse
        store.save(state, 1, meta={})
        store.wait()
        arrays.write = write
        store.save(state, 2, meta={})
        store.wait()
        return {"failure": store.failure.what, "said": len(said), "steps": files.steps(folder / "full")}


def silent(folder: Path, process: int) -> dict:
    """Process 1 does not take part: process 0 says so within its limit."""
    from jax._src import distributed

    from paceline.checkpoint.store import Store

    client = distributed.global_state.client
    _, place = _state()
    place_of = folder / "silent"
    store = Store(place_of, say=lambda text: None, limit_s=1)
    state = place("fsdp", 3)
    if process == 0:
        store.save(state, 1, meta={})
        store.wait()
        patient = Store(place_of, say=lambda text: None)
        patient.save(state, 2, meta={})
        start_s = time.monotonic()
        patient.close(give_up=True)
        client.key_value_set("done", "")
        given_up = {"failure": str(patient.failure), "soon": time.monotonic() - start_s < 20}
        return {
            "given_up": given_up,
            "failure": str(store.failure),
            "left": sorted(item.name for item in place_of.iterdir()) if place_of.is_dir() else [],
        }
    client.blocking_key_value_get("done", 60_000)
    return {}


if __name__ == "__main__":
    main()
