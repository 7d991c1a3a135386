"""Checkpoints read again: the latest that is sound, proven on the devices that hold it.

Owns: which checkpoint is taken, the proof, what is skipped and what is refused.
Not here: where checkpoints lie (`find`), whether one fits (`match`), how a leaf gets to its devices (`placing`).
Invariant: what is returned has, on every device, the checksums that were computed on the devices when it was saved.
Damaged is skipped with a sentence if there is an earlier one; what does not fit is refused, never skipped.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from paceline.base.errors import CheckpointError, PacelineError
from paceline.checkpoint import arrays, files, foreign
from paceline.checkpoint.bits import host_to_written
from paceline.checkpoint.checksum import Sums, compile_sums, host_sums, odd_replicas, owned, sums_by_device, total
from paceline.checkpoint.files import Damaged
from paceline.checkpoint.find import Candidate, candidates
from paceline.checkpoint.match import match, table
from paceline.checkpoint.peers import Peers
from paceline.checkpoint.placing import Target, empty, finish, place, targets
from paceline.checkpoint.snapshot import Leaf

_GROUP_BYTES = 1 << 29


@dataclass(frozen=True)
class Restored:
    """A state that was read.

    Args:
      state: the tree of `like`, with the numbers of the checkpoint.
      step: of the checkpoint.
      meta: what was saved with it; empty if other code saved it.
      path: the folder that it was read from.
    """

    state: Any
    step: int
    meta: dict[str, Any]
    path: Path


def restore(
    folder: str | os.PathLike[str],
    *,
    like: Any,
    step: int | None = None,
    say: Callable[[str], None] = lambda text: print(text, file=sys.stderr),
    agree: Callable[[bool], bool] = bool,
) -> Restored:
    """Read a state. In a run of several processes all of them call it.

    Args:
      folder: of a run, of its checkpoints or of one step; or an Orbax checkpoint of other code, with or without a
        leading device axis.
      like: a tree of arrays, or of shapes with shardings, without device axis. It says what the leaves are called, and
        on which devices they go: as many as you like, placed as you like. Parameters alone are found too.
      step: exactly this one; None: the latest that is sound.
      say: called with a sentence for each checkpoint that is skipped.
      agree: called twice for each checkpoint that is tried, with this process's verdict; returns that of all processes.

    Raises: CheckpointError: there is none; the one asked for, or every one, is damaged; leaves do not fit; replicas of
    a classic checkpoint differ.
    """
    peers = Peers("the checkpoint to read")
    wanted = targets(like)
    problems: list[str] = []
    found = _same_for_all(peers, lambda: candidates(folder, step=step))
    for number, candidate in enumerate(found):
        result = _try(candidate, wanted, peers=peers, label=str(number), agree=agree)
        if not isinstance(result, str):
            leaves, reached, meta = result
            state = jax.tree.unflatten(jax.tree.structure(like), [leaves[name] for name in wanted])
            return Restored(state, reached, meta, candidate.path)
        problems.append(f"{candidate}: {result}")
        if len(found) > 1:
            say(f"{candidate} is {'half-written' if candidate.half else 'damaged'} and was skipped: {result}")
    raise _none_sound(folder, problems, one=step is not None or len(found) == 1)


def read_meta(folder: str | os.PathLike[str], step: int) -> dict[str, Any]:
    """What was saved with the state of a step. Raises: CheckpointError: it is not there or damaged."""
    candidate = candidates(folder, step=step)[0]
    try:
        return _known(files.read_document(candidate.path), candidate)["meta"]
    except Damaged as error:
        raise _none_sound(folder, [f"{candidate}: {error}"], one=True) from error


def read_on_host(path: Path, leaves: Mapping[str, Leaf]) -> dict[str, np.ndarray]:
    """Some leaves of one checkpoint of ours as numpy arrays, proven. Raises: Damaged."""
    document = files.read_document(path)
    files.check_files(path, document, bytes_too=True)
    wanted = {name: Target(leaf, None) for name, leaf in leaves.items()}
    held = dict(_read(path / files.ARRAYS, document, {name: name for name in leaves}, wanted, parts=False))
    for name, found in _own_sums(held, wanted).items():
        if list(found) != list(document["leaves"][name]["sums"]):
            raise Damaged(f"leaf {name!r} does not have the checksum that it was saved with")
    return held


def _same_for_all(peers: Peers, find: Callable[[], list[Candidate]]) -> list[Candidate]:
    """Process 0's choice: a network disk may show the processes different folders for a while."""
    error: PacelineError | None = None
    found: list[Candidate] = []
    try:
        found = find()
    except PacelineError as raised:
        error = raised
    names = [[one.step, str(one.path), None if one.foreign is None else str(one.foreign), one.half] for one in found]
    said = peers.exchange(
        "found", {"found": names, "error": None if error is None else [error.what, error.why, error.fix]}
    )
    if said[0]["error"] is not None:
        what, why, fix = said[0]["error"]
        raise CheckpointError(what=what, why=why, fix=fix)
    return [
        Candidate(step, Path(path), None if item is None else Path(item), half)
        for step, path, item, half in said[0]["found"]
    ]


_Result = tuple[dict[str, Any], int, dict[str, Any]]


def _try(
    candidate: Candidate, wanted: Mapping[str, Target], *, peers: Peers, label: str, agree: Callable[[bool], bool]
) -> _Result | str:
    """Leaves, step and meta; or what is wrong with the bytes."""
    problem, document = _open(candidate)
    if not agree(problem is None):
        return problem or "another process finds it damaged"
    if document is None:
        assert candidate.foreign is not None, "a checkpoint of ours has a document"
        leaves = foreign.load(candidate.foreign, wanted, source=str(candidate))
        agree(True)
        return leaves, foreign.step_of(leaves, candidate.step), {}
    names = match({name: target.leaf for name, target in wanted.items()}, table(document), source=str(candidate))
    leaves, problem = _load(candidate.path, document, names, wanted, peers=peers, label=label)
    if not agree(problem is None):
        return problem or "another process finds it damaged"
    return leaves, document["step"], document["meta"]


def _open(candidate: Candidate) -> tuple[str | None, dict[str, Any] | None]:
    """What is wrong with the files, or None, and the document; None for a checkpoint of other code."""
    if candidate.half:
        return "the run ended while it was written", None
    if candidate.foreign is not None:
        return None, None
    try:
        document = _known(files.read_document(candidate.path), candidate)
        files.check_files(candidate.path, document, bytes_too=True)
    except Damaged as error:
        return str(error), None
    return None, document


def _known(document: dict[str, Any], candidate: Candidate) -> dict[str, Any]:
    if document["format"] > files.FORMAT:
        raise CheckpointError(
            what=f"{candidate} has format {document['format']}; this version knows {files.FORMAT}",
            why="a newer version saved it, and its numbers would be misread",
            fix="update paceline: pip install --upgrade paceline",
        )
    return document


def _load(
    path: Path, document: Mapping[str, Any], names: Mapping[str, str], wanted: Mapping[str, Target], *,
    peers: Peers, label: str,
) -> tuple[dict[str, Any], str | None]:  # fmt: skip
    """Every leaf on its devices, and what is wrong with the numbers."""
    leaves: dict[str, Any] = {}
    problem: str | None = None
    sums: dict[str, Sums] = {}
    compiling = _in_background(wanted)
    try:
        for name, leaf in _read(path / files.ARRAYS, document, names, wanted, parts=peers.count > 1):
            leaves[name] = leaf
        compiling.join()
        sums = _own_sums(leaves, wanted)
    except Damaged as error:
        problem = str(error)
    said = peers.exchange(f"{label}/read", {"problem": problem, "sums": sums})
    for process, word in enumerate(said):
        if word["problem"] is not None:
            return leaves, word["problem"] if process == peers.index else f"process {process}: {word['problem']}"
    for name, source in names.items():
        own = total(word["sums"][name] for word in said) if wanted[name].is_split else sums[name]
        if list(own) != list(document["leaves"][source]["sums"]):
            return leaves, f"leaf {source!r} does not have the checksum that it was saved with"
    return leaves, None


def _in_background(wanted: Mapping[str, Target]) -> threading.Thread:
    """The program of the checksums is compiled while the files are read: each takes about half a second at first."""
    shapes = {name: target.shape for name, target in wanted.items() if target.sharding is not None}
    thread = threading.Thread(target=compile_sums, args=(shapes,), name="paceline-checksums", daemon=True)
    thread.start()
    return thread


def _read(
    folder: Path, document: Mapping[str, Any], names: Mapping[str, str], wanted: Mapping[str, Target], *, parts: bool
) -> Any:
    """``(name, leaf)`` one after another, a group of arrays of the folder in memory at a time."""
    entries = {name: document["leaves"][source] for name, source in names.items()}
    for name, entry in entries.items():
        if "at" not in entry and "as" not in entry:
            yield name, empty(wanted[name])
    packed = [name for name, entry in entries.items() if "at" in entry]
    if packed:
        data = _orbax(folder, {arrays.PACKED: None})[arrays.PACKED]
        for name in packed:
            shape, dtype = wanted[name].leaf.written
            yield name, place(_unpacked(data, entries[name]["at"], shape, dtype, name), wanted[name])
        del data
    sizes = {name: _size(wanted[name]) for name, entry in entries.items() if "as" in entry}
    for group in arrays.groups(sizes, at_most=_GROUP_BYTES):
        asked = {entries[name]["as"]: _part(wanted[name]) if parts else None for name in group}
        read = _orbax(folder, asked)
        for name in group:
            data = read.pop(entries[name]["as"])
            if (tuple(data.shape), np.dtype(data.dtype)) != wanted[name].leaf.written:
                raise Damaged(f"leaf {name!r} was read as {data.dtype}{data.shape}")
            on_host = isinstance(data, np.ndarray)
            yield name, place(data, wanted[name]) if on_host else finish(data, wanted[name])
            del data


def _part(target: Target) -> jax.ShapeDtypeStruct | None:
    """What Orbax is to read in parts, each process its own."""
    shape, dtype = target.leaf.written
    return jax.ShapeDtypeStruct(shape, dtype, sharding=target.sharding) if target.is_split else None


def _size(target: Target) -> int:
    shape, dtype = target.leaf.written
    return int(np.prod(shape, dtype=np.int64)) * dtype.itemsize


def _orbax(folder: Path, names: Mapping[str, jax.ShapeDtypeStruct | None]) -> dict[str, Any]:
    """Raises: Damaged: whatever Orbax raises, as it does not tell one trouble from another."""
    try:
        return arrays.read(folder, names)
    except MemoryError:
        raise
    except Exception as error:
        if "RESOURCE_EXHAUSTED" in str(error):
            raise
        words = " ".join(str(error).split())[:300]
        raise Damaged(f"{', '.join(list(names)[:3])} cannot be read: {words or type(error).__name__}") from error


def _unpacked(data: np.ndarray, at: int, shape: tuple[int, ...], dtype: Any, name: str) -> np.ndarray:
    try:
        return arrays.unpack(data, at=at, shape=shape, dtype=dtype)
    except ValueError as error:
        raise Damaged(f"leaf {name!r} is cut off") from error


def _own_sums(leaves: Mapping[str, Any], wanted: Mapping[str, Target]) -> dict[str, Sums]:
    """What this process has of the checksum of each leaf, of every device. Raises: Damaged: replicas differ."""
    sums: dict[str, Sums] = {}
    found = sums_by_device({name: leaf for name, leaf in leaves.items() if wanted[name].sharding is not None})
    for name, target in wanted.items():
        if target.sharding is None:
            sums[name] = host_sums(host_to_written(leaves[name]))
            continue
        shape = target.leaf.shape
        if odd_replicas(found[name], sharding=target.sharding, shape=shape):
            raise Damaged(f"leaf {name!r} is not the same on all devices after it was read")
        if target.sharding.is_fully_replicated:
            sums[name] = next(iter(found[name].values()))
        else:
            sums[name] = owned(found[name], sharding=target.sharding, shape=shape)
    return sums


def _none_sound(folder: Any, problems: list[str], *, one: bool) -> CheckpointError:
    where = f"in {os.fspath(folder)!r}"
    return CheckpointError(
        what=f"damaged {where}: {problems[0]}" if one else f"no checkpoint {where} is sound: {'; '.join(problems)}",
        why="a state of wrong numbers would train on without a word",
        fix="restore another step, a copy of the folder, or begin the run anew",
    )
