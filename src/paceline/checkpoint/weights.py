"""Weights alone, as safetensors files: for other programs, and from them.

Owns: the export of parameters, or of those in a checkpoint, and the import into parameters of the same names.
Invariant: a file appears whole or not at all; a leaf is never cast, cut or padded to fit.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import jax
import numpy as np

from paceline.base.errors import CheckpointError
from paceline.checkpoint import files
from paceline.checkpoint.bits import dtype_name, host_to_written, named_dtype
from paceline.checkpoint.files import Damaged
from paceline.checkpoint.find import candidates
from paceline.checkpoint.match import match, table
from paceline.checkpoint.placing import place, targets
from paceline.checkpoint.reading import read_on_host
from paceline.checkpoint.snapshot import Leaf, unique_leaves
from paceline.checkpoint.trouble import reason

_DTYPES = {
    "bool": "BOOL", "int8": "I8", "int16": "I16", "int32": "I32", "int64": "I64",
    "uint8": "U8", "uint16": "U16", "uint32": "U32", "uint64": "U64",
    "float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64", "complex64": "C64",
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "float8_e8m0fnu": "F8_E8M0",
}  # fmt: skip
"""What the format calls a dtype; others it does not have."""
_NAMES = {short: name for name, short in _DTYPES.items()}


def export_weights(params: Any, path: str | os.PathLike[str]) -> None:
    """Write a tree of arrays to a safetensors file, each under its dotted name. Of several processes the first writes.

    Raises: CheckpointError: a dtype that the format does not have, an array of which other processes hold parts, two
    leaves of one name, or the file cannot be written.
    """
    held: dict[str, np.ndarray] = {}
    for name, leaf in unique_leaves(params).items():
        if isinstance(leaf, jax.Array) and not (leaf.is_fully_addressable or leaf.is_fully_replicated):
            raise CheckpointError(
                what=f"leaf {name!r} lies in parts with several processes",
                why="this one has only some of it",
                fix="save a checkpoint, and write its weights with paceline export RUN FILE",
            )
        _check_dtype(name, dtype_name(leaf.dtype) if hasattr(leaf, "dtype") else np.asarray(leaf).dtype.name)
        held[name] = np.asarray(leaf)
    if jax.process_index() == 0:
        _write(held, Path(os.path.expanduser(path)))


def import_weights(path: str | os.PathLike[str], like: Any) -> Any:
    """The arrays of a safetensors file, in the tree, on the devices and in the placement of `like`.

    Raises: CheckpointError: no such file, damaged, or leaves do not fit; they are named.
    """
    file = Path(os.path.expanduser(path))
    wanted = targets(like)
    held = _parse(file)
    there = {name: Leaf(data.shape, data.dtype.name) for name, data in held.items()}
    source = f"the file {str(file)!r}"
    names = match({name: target.leaf for name, target in wanted.items()}, there, source=source)
    leaves = {name: place(host_to_written(held.pop(names[name])), target) for name, target in wanted.items()}
    return jax.tree.unflatten(jax.tree.structure(like), [leaves[name] for name in wanted])


def export_checkpoint(
    folder: str | os.PathLike[str], path: str | os.PathLike[str], *, step: int | None = None, ema: bool = False
) -> int | None:
    """Write the parameters of a checkpoint to a safetensors file, as `export_weights` does. No model is needed.

    Args:
      folder: of a run, of its checkpoints or of one step.
      path: of the file.
      step: which one; None: the latest that is sound.
      ema: the moving average of the parameters instead.
    Returns: the step of the checkpoint, as far as its folder tells.
    Raises: CheckpointError: no checkpoint is there or sound, it has no such leaves, or the file cannot be written.
    """
    problems = []
    for candidate in candidates(folder, step=step):
        if candidate.half:
            continue
        try:
            held = _field(candidate.path, "ema" if ema else "params", source=str(candidate))
        except Damaged as error:
            problems.append(f"{candidate}: {error}")
            continue
        _write(held, Path(os.path.expanduser(path)))
        return candidate.step
    raise CheckpointError(
        what=f"no checkpoint in {os.fspath(folder)!r} is sound: {'; '.join(problems) or 'none is complete'}",
        why="weights of wrong numbers would be used without a word",
        fix="name another run, or the step of another checkpoint",
    )


def _field(path: Path, field: str, *, source: str) -> dict[str, np.ndarray]:
    """The leaves of a field of the state, proven, by their names in it. Raises: Damaged."""
    there = table(files.read_document(path))
    chosen = {name: leaf for name, leaf in there.items() if name == field or name.startswith(f"{field}.")}
    if not chosen:
        raise CheckpointError(
            what=f"{source} has no {field}",
            why="it is not the state of a training run, or was saved without a moving average",
            fix="leave out --ema (ema=True)" if field == "ema" else "write them with paceline.export_weights",
        )
    for name, leaf in chosen.items():
        _check_dtype(name, leaf.dtype)
    held = read_on_host(path, chosen)
    return {name.removeprefix(field).removeprefix(".") or "(whole)": data for name, data in held.items()}


def _check_dtype(name: str, dtype: str) -> None:
    if dtype not in _DTYPES:
        raise CheckpointError(
            what=f"leaf {name!r} is {dtype}, which a safetensors file cannot hold",
            why="no leaf is cast on the way",
            fix="leave it out, or cast it to float32 first",
        )


def _write(held: Mapping[str, np.ndarray], file: Path) -> None:
    from safetensors.numpy import save_file

    rest: str | None = None
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        descriptor, rest = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
        os.close(descriptor)
        save_file({name: np.array(data, order="C", ndmin=0) for name, data in held.items()}, rest)
        os.chmod(rest, 0o666 & ~_umask())
        os.replace(rest, file)
    except Exception as error:
        if rest is not None:
            with suppress(OSError):
                os.unlink(rest)
        raise CheckpointError(
            what=f"the weights cannot be written to {str(file)!r}: {reason(error)}",
            why="a file that was there before is as it was",
            fix="free space there, or choose a file in a folder that can be written",
        ) from error


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _parse(file: Path) -> dict[str, np.ndarray]:
    from safetensors import SafetensorError, deserialize

    if not file.is_file():
        raise CheckpointError(
            what=f"no weights at {str(file)!r}: it is {'a folder' if file.is_dir() else 'not there'}",
            why="weights are one safetensors file",
            fix=f"restore a checkpoint with paceline.restore({str(file)!r}, state)"
            if file.is_dir()
            else "name the file that paceline.export_weights wrote",
        )
    try:
        return {name: _array(entry) for name, entry in deserialize(file.read_bytes())}
    except (SafetensorError, KeyError, ValueError) as error:
        raise CheckpointError(
            what=f"{str(file)!r} cannot be read as safetensors: {reason(error)}",
            why="it is damaged, of another format, or has a dtype that JAX does not have",
            fix="write it again with paceline.export_weights",
        ) from error


def _array(entry: Mapping[str, Any]) -> np.ndarray:
    return np.frombuffer(entry["data"], named_dtype(_NAMES[entry["dtype"]])).reshape(entry["shape"])
