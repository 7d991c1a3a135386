"""Named arrays in a folder, written and read by Orbax.

Owns: which of Orbax's many ways is used, small arrays packed into one, silence on the terminal.
Not here: what the arrays mean (`checkpoint.snapshot`), atomicity (`checkpoint.files`).
Invariant: no call waits for another process or uses a device collective, so any thread may make it.

An array of its own costs Orbax about a millisecond of processor time, whatever its size. Small ones therefore lie in
one array of bytes, `PACKED`, where the table says. Nothing is compressed: numbers of a training state hardly shrink,
and it would take four times as long. Of Orbax's formats it is the one of plain files (Zarr), not the key-value
store, which writes twice.
"""

from __future__ import annotations

import functools
import logging
import re
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import Array

PACKED = "packed"
MARK = {"paceline": 1}
"""Orbax keeps it in its own metadata: by it an item is known as ours when our document is lost."""

_SMALL_BYTES = 1 << 18
_CHUNK_BYTES = 1 << 26
_ALIGNMENT = 64
_FOREIGN = re.compile(r"[^\w.-]")


class _Owned(np.ndarray):
    """An array of the snapshot's own. Orbax copies what it is given, lest others write into it: nobody does."""

    def __deepcopy__(self, memo: Any) -> _Owned:
        return self


def layout(written: Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]], *, alone: frozenset[str]) -> dict[str, Any]:
    """Where each array goes: ``{"at": offset}`` in the packed one, ``{"as": name}`` by itself, ``{}`` if it is empty.

    Args:
      written: shape and dtype of each by its name.
      alone: those that are never packed: several processes write them.
    """
    places: dict[str, Any] = {}
    offset = 0
    for index, (name, (shape, dtype)) in enumerate(written.items()):
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        if size == 0:
            places[name] = {}
        elif size <= _SMALL_BYTES and name not in alone:
            places[name] = {"at": offset}
            offset += -(-size // _ALIGNMENT) * _ALIGNMENT
        else:  # numbered: the name alone may be too long for a file, or differ from another one by case only
            places[name] = {"as": f"{index}.{_FOREIGN.sub('_', name)[:100]}"}
    return places


def write(folder: Path, arrays: Mapping[str, np.ndarray | Array], *, places: Mapping[str, Any]) -> None:
    """Write arrays into a folder that exists, and wait. In a run of several processes, all of them call it.

    Args:
      arrays: by leaf name. `jax.Array` are written by all processes, each its parts, others by process 0.
      places: of `layout`.
    """
    item: dict[str, Any] = {}
    packed = {name: array for name, array in arrays.items() if "at" in places[name]}
    if packed:
        item[PACKED] = _pack(packed, places).view(_Owned)
    for name, array in arrays.items():
        if "as" in places[name]:
            item[places[name]["as"]] = array if isinstance(array, Array) else array.view(_Owned)
    if not item:
        return
    ocp, path = _orbax(), _path(folder)
    chunks = {name: ocp.SaveArgs(chunk_byte_size=_CHUNK_BYTES) for name in item}
    _handler().save(path, args=ocp.args.PyTreeSave(item, save_args=chunks, custom_metadata=MARK))


def _pack(arrays: Mapping[str, np.ndarray | Array], places: Mapping[str, Any]) -> np.ndarray:
    last = max(arrays, key=lambda name: places[name]["at"])
    packed = np.zeros(places[last]["at"] + arrays[last].nbytes, np.uint8)
    for name, array in arrays.items():
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        packed[places[name]["at"] :][: data.size] = data
    return packed


def read(folder: Path, names: Mapping[str, jax.ShapeDtypeStruct | None]) -> dict[str, Any]:
    """Arrays by their names in the folder, unpacked ones or `PACKED`.

    Args:
      names: None: a numpy array. A shape with a sharding: a `jax.Array` of which this process reads its parts only.
    """
    if not names:
        return {}
    ocp = _orbax()
    wanted = {
        name: ocp.RestoreArgs(restore_type=np.ndarray)
        if target is None
        else ocp.ArrayRestoreArgs(
            restore_type=jax.Array, sharding=target.sharding, global_shape=target.shape, dtype=target.dtype
        )
        for name, target in names.items()
    }
    args = ocp.args.PyTreeRestore(item=dict.fromkeys(names, 0), restore_args=wanted, partial_restore=True)
    return _handler().restore(_path(folder), args=args)


def read_tree(folder: Path) -> Any:
    """All of an Orbax item that other code may have written: nested dicts of numpy arrays."""
    ocp = _orbax()
    handler = ocp.PyTreeCheckpointHandler()
    path = _path(folder)
    tree = handler.metadata(path).tree
    wanted = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), tree)
    return handler.restore(path, args=ocp.args.PyTreeRestore(restore_args=wanted))


def unpack(packed: np.ndarray, *, at: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    """One array of the packed ones. Raises: ValueError: the bytes end before."""
    count = int(np.prod(shape, dtype=np.int64))
    return np.frombuffer(packed, dtype, count=count, offset=at).reshape(shape)


def groups(sizes: Mapping[str, int], *, at_most: int) -> Iterator[list[str]]:
    """Names in turn, so many bytes at a time; one that is larger comes alone."""
    group: list[str] = []
    held = 0
    for name, size in sizes.items():
        if group and held + size > at_most:
            yield group
            group, held = [], 0
        group.append(name)
        held += size
    if group:
        yield group


def warm_up() -> None:
    """Import Orbax, which takes most of a second, before it is needed."""
    _handler()


@functools.cache
def _handler() -> Any:
    ocp = _orbax()
    types = ocp.type_handlers
    registry = types.create_type_handler_registry(
        (np.ndarray, types.NumpyHandler()),
        (jax.Array, types.ArrayHandler(use_replica_parallel=False, enable_write_sharding_file=False)),
    )
    return ocp.PyTreeCheckpointHandler(
        use_ocdbt=False, use_zarr3=False, use_compression=False, type_handler_registry=registry
    )


def _path(folder: Path) -> Any:
    from etils import epath

    return epath.Path(folder)


@functools.cache
def _orbax() -> Any:
    # Orbax tells absl's logger about each file. Only records of its own are dropped: the logger is others' too.
    logging.getLogger("absl").addFilter(_not_of_orbax)
    warnings.filterwarnings("ignore", module=r"orbax\..*")
    import orbax.checkpoint

    return orbax.checkpoint


def _not_of_orbax(record: logging.LogRecord) -> bool:
    return "/orbax/checkpoint/" not in record.pathname.replace("\\", "/")
