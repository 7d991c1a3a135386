"""What a run depends on, for the processes to compare before the first step.

Owns: the list of facts: options, data, seed, versions, code, settings, the program of the step.
Not here: the comparison (`train.agreement`), the parameters, which the first audit compares on the devices.

Why: a learning rate, a seed or a file that differs is accepted by JAX without a word, and each process then trains
another model with gradients of all.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import inspect
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from paceline.data.source import ArraySource, Source, as_source
from paceline.data.tree import named_leaves
from paceline.engine.update import StepSpec
from paceline.tasks.task import Task
from paceline.train.batching import Start
from paceline.train.checkpoints import RunIdentity
from paceline.train.describe import versions
from paceline.train.options import FitOptions

_OWN = (
    "coordinator",
    "num_processes",
    "process_index",
    "json",
    "progress",
    "traceback",
    "run",
    "config",
    "compilation_cache",
    "processes",
)
"""Options that a process may have for itself."""
_SETTINGS = (
    "jax_enable_x64",
    "jax_default_matmul_precision",
    "jax_default_prng_impl",
    "jax_threefry_partitionable",
    "jax_numpy_dtype_promotion",
)
_MOST_FUNCTIONS = 200
_WHOLE_BYTES = 256_000_000
_SAMPLED_ROWS = 4096


def run_facts(
    spec: StepSpec, options: FitOptions, *, identity: RunIdentity, start: Start, source: Any, rng: jax.Array
) -> dict[str, Any]:
    """What the processes of a run compare before they read or compile anything.

    Args:
      identity: task, data and order of rows.
      source: the data as it is read.
      rng: the key of the state.
    """
    tree = {
        "run": dataclasses.asdict(identity),
        "config": dict(options.config),
        "parallel": dataclasses.asdict(spec.parallel),
        "data": dataclasses.asdict(options.data) | {"kind": type(source).__name__},
        "audit": dataclasses.asdict(options.audit),
        "checkpoints": None if options.checkpoints is None else dataclasses.asdict(options.checkpoints),
        "evaluate_every": options.evaluate_every,
        "first step": start.step,
        "versions": versions(),
        "devices": {"count": spec.mesh.size, "kind": spec.mesh.devices.flat[0].device_kind},
    }
    facts = {key: value for key, value in _flat(tree).items() if key.rpartition(".")[2] not in _OWN}
    facts["random key"] = np.asarray(jax.random.key_data(rng).addressable_data(0)).tolist()
    facts |= _task_code(spec.task)
    facts["code of paceline"] = _package_code()
    facts["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "")
    facts |= {name: str(getattr(jax.config, name)) for name in _SETTINGS}
    facts |= _sample(source, "data") if isinstance(source, Source) else {}
    evaluation = None if options.evaluation is None else as_source(options.evaluation)
    if isinstance(evaluation, Source):
        facts["evaluation data.rows"] = len(evaluation)
        facts |= _sample(evaluation, "evaluation data")
    return facts


def program_facts(lowered: jax.stages.Lowered) -> dict[str, Any]:
    """The step program, in which every host value that the task closed over is a constant."""
    return {
        "the step's program (host values in it, such as a learning rate, differ)": _digest(lowered.as_text().encode())
    }


def _sample(source: Source, noun: str) -> dict[str, Any]:
    """Content of the data, leaf by leaf: of arrays all of it or rows spread over them, of other sources three rows,
    since reading one may cost much."""
    size = len(source)
    if isinstance(source, ArraySource):
        places = np.unique(np.linspace(0, size - 1, min(size, _SAMPLED_ROWS)).astype(np.int64))
        whole = source.nbytes <= _WHOLE_BYTES
        places = np.arange(size) if whole else places
        label = f"content of the {noun}" if whole else f"content of {len(places)} rows of the {noun}"
    else:
        places = np.unique(np.asarray([0, size // 2, size - 1], np.int64))
        label = f"content of the first, middle and last row of the {noun}"
    read = source.read(places)
    return {
        f"{label}, leaf {name or 'data'}": _digest(np.ascontiguousarray(leaf).data) for name, leaf in named_leaves(read)
    }


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        flat |= _flat(value, f"{name}.") if isinstance(value, Mapping) else {name: value}
    return flat


def _task_code(task: Task) -> dict[str, str]:
    """Digests, by name, of the files that define the task's loss and init; code that was typed in has none."""
    package = str(Path(__file__).parents[1])
    files = sorted(file for file in _files_of([task.loss, task.init]) if not file.startswith(package))
    return {f"code of {Path(file).name}": _digest(Path(file).read_bytes()) for file in files if Path(file).is_file()}


def _files_of(waiting: list[Any]) -> set[str]:
    """Files of functions, of those that they close over, and of the classes of callable objects."""
    files: set[str] = set()
    seen: list[Any] = []  # keeps what has been looked at alive, so that no other gets its id
    while waiting and len(seen) < _MOST_FUNCTIONS:
        item = waiting.pop()
        if not callable(item) or any(item is known for known in seen):
            continue
        seen.append(item)
        if isinstance(item, functools.partial):
            waiting += [item.func, *item.args, *item.keywords.values()]
        elif inspect.ismethod(item):
            waiting += [item.__func__, item.__self__]
        elif inspect.isfunction(item):
            files.add(item.__code__.co_filename)
            waiting += [getattr(item, "__wrapped__", None), *inspect.getclosurevars(item).nonlocals.values()]
        else:
            with contextlib.suppress(TypeError, OSError):  # built in
                files.add(inspect.getfile(item if inspect.isclass(item) else type(item)))
    return files


@functools.cache
def _package_code() -> str:
    total = hashlib.blake2b(digest_size=8)
    root = Path(__file__).parents[1]
    for file in sorted(root.rglob("*.py")):
        total.update(str(file.relative_to(root)).encode() + file.read_bytes())
    return total.hexdigest()


def _digest(content: bytes | memoryview) -> str:
    return hashlib.blake2b(content, digest_size=8).hexdigest()
