"""One checkpoint written: by all processes together, in a background thread.

Owns: the order of things, the document, what happens when one process fails.
Not here: the copy of the state (`snapshot`), names and renames (`files`), when it is done (`store`).
Invariant: the folder gets its name only after every process has said that its part is on the disk.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from paceline.checkpoint import arrays, files
from paceline.checkpoint.checksum import Sums, total
from paceline.checkpoint.peers import Peers
from paceline.checkpoint.snapshot import Snapshot
from paceline.checkpoint.trouble import reason

_SHARED_DISK_S = 10.0
"""How long a network disk may take to show to one process the folder that another one made."""


_SETTLE_S = 0.3
"""For what a failed save still writes."""


class WriteFailed(Exception):
    """Another process could not write its part; the text says which and why."""


def write(
    snapshot: Snapshot, *, folder: Path, step: int, meta: Mapping[str, Any], peers: Peers, label: str, there: bool
) -> bool:
    """Write a checkpoint; every process calls it with the same arguments. False: it is there already.

    Args:
      snapshot: is used up: its memory is freed while it is written.
      label: tells this try to write from every other one.
      there: whether a complete checkpoint of this step is there, as process 0 knows.

    Raises: OSError, WriteFailed, PeerError, what Orbax raises: nothing was saved, and what was written is away again.
    """
    place = files.saving_folder(folder, step)
    try:
        if not _begin(place, size=snapshot.size, peers=peers, label=label, there=there):
            return False
        made = os.stat(place).st_ino if peers.index == 0 else 0
        document = _write_parts(snapshot, place, peers=peers, label=label)
        named = {**document, "step": step, "meta": dict(meta)}
        _commit(folder, step, document=named, made=made, peers=peers, label=label)
    except BaseException:
        if peers.index == 0:
            files.discard(place, settle_s=_SETTLE_S)
        raise
    return True


def _begin(place: Path, *, size: int, peers: Peers, label: str, there: bool) -> bool:
    """Process 0 makes the folder, or says that nothing is to be done."""
    error: BaseException | None = None
    if peers.index == 0 and not there:
        try:
            files.discard(place)
            files.check_space(place.parent, size=size)
            os.mkdir(place)
            os.mkdir(place / files.ARRAYS)
        except OSError as raised:
            error = raised
    said = peers.exchange(f"{label}/begin", {"error": _words(error), "there": there})
    _raise_failure(error, said)
    return not said[0]["there"]


def _write_parts(snapshot: Snapshot, place: Path, *, peers: Peers, label: str) -> dict[str, Any]:
    """The numbers; the document but for its files, complete in process 0."""
    alone = frozenset(snapshot.split)
    places = arrays.layout({name: leaf.written for name, leaf in snapshot.leaves.items()}, alone=alone)
    error: BaseException | None = None
    sums: dict[str, Sums] = {}
    try:
        _wait_for_folder(place)
        held = _written_here(snapshot, peers.index)
        sums = snapshot.own_sums()
        arrays.write(place / files.ARRAYS, held, places=places)
    except Exception as raised:  # whatever it is, the others must hear of it
        error = raised
    said = peers.exchange(f"{label}/written", {"error": _words(error), "sums": sums})
    _raise_failure(error, said)
    leaves = {
        name: {
            "shape": list(leaf.shape),
            "dtype": leaf.dtype,
            "sums": total(one["sums"][name] for one in said if name in one["sums"]),
            **places[name],
        }
        for name, leaf in snapshot.leaves.items()
    }
    versions = {"jax": jax.__version__}
    return {
        "format": files.FORMAT,
        "saved_s": time.time(),
        "processes": peers.count,
        "versions": versions,
        "leaves": leaves,
    }


def _written_here(snapshot: Snapshot, process: int) -> dict[str, Any]:
    """What this process gives to Orbax: whole leaves in process 0, its parts of the split ones in all."""
    return {**(snapshot.to_host() if process == 0 else {}), **snapshot.split}


def _wait_for_folder(place: Path) -> None:
    deadline_s = time.monotonic() + _SHARED_DISK_S
    while not (place / files.ARRAYS).is_dir():
        if time.monotonic() > deadline_s:
            raise FileNotFoundError(
                f"it does not see the folder {str(place)!r} that process 0 has made: the disk is not shared"
            )
        time.sleep(0.05)


def _commit(folder: Path, step: int, *, document: dict[str, Any], made: int, peers: Peers, label: str) -> None:
    """Process 0 names the folder, if it is the one that it made; nobody goes on before."""
    error: BaseException | None = None
    if peers.index == 0:
        place = files.saving_folder(folder, step)
        try:
            if os.stat(place).st_ino != made:  # taken away meanwhile; Orbax has made it again without a word
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(place))
            files.write_document(place, {**document, "files": files.list_files(place)})
            files.commit(folder, step)
        except Exception as raised:  # whatever it is, the others must hear of it
            error = raised
    _raise_failure(error, peers.exchange(f"{label}/named", {"error": _words(error)}))


def _words(error: BaseException | None) -> str | None:
    return None if error is None else reason(error)


def _raise_failure(error: BaseException | None, said: list[dict[str, Any]]) -> None:
    if error is not None:
        raise error
    for process, word in enumerate(said):
        if word["error"] is not None:
            raise WriteFailed(f"process {process}: {word['error']}")
