"""JSON files that people open too: ``run.json`` and ``report.json``.

Owns: turning any value into plain JSON, and replacing a file so that no reader ever sees half of it.
Not here: events, which are appended (`telemetry.events`), and which documents a run has (`telemetry.recorder`).
Invariant: a document on disk is whole: the old one or the new one, also after a crash or on a full disk.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from paceline.base.regular import read_regular
from paceline.telemetry.events import number_text


def plain(value: Any) -> Any:
    """``value`` as dicts, lists, strings, numbers, bools and None.

    Non-finite numbers become ``"nan"``, ``"inf"``, ``"-inf"``. Dataclasses become objects, numpy and jax scalars
    numbers, arrays lists, enum members their values; what JSON has no form for (a dtype, a path, a function)
    becomes its words, because a document that only people read must not stop a run.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Enum):
        return plain(value.value)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return number_text(value) or float(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted((plain(item) for item in value), key=str)
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if hasattr(value, "tolist") and not isinstance(value, type):
        return plain_array(value)
    return str(value)


def plain_array(value: Any) -> Any:
    """Numbers of a numpy or jax scalar or array; its words where its elements are no JSON numbers."""
    items = value.tolist()
    return plain(items) if isinstance(items, (int, float, str, list)) else str(value)


def write_document(path: Path, content: Mapping[str, Any]) -> None:
    """Replaces the file at ``path`` by ``content`` as indented JSON, in one step.

    Raises: OSError: the disk refused. The old document, if any, is then still there and nothing else is.
    """
    text = json.dumps(plain(content), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(text.encode("utf-8", "backslashreplace"))
            file.flush()
            os.fsync(file.fileno())  # else a power cut after the rename can leave an empty file under the new name
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def read_document(path: Path) -> dict[str, Any]:
    """The object in the file; non-finite numbers stay the strings that they are there.

    Raises:
      OSError: it cannot be read, or is no regular file.
      ValueError: it holds no JSON object.
    """
    return parse_document(read_regular(path))


def parse_document(text: bytes) -> dict[str, Any]:
    """The object in the text of a document. Raises: ValueError: it holds none."""
    try:
        content = json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise
    except ValueError as error:  # Python's own words are for its programmers
        raise ValueError(f"holds a whole number of more than {sys.get_int_max_str_digits():,} digits") from error
    if not isinstance(content, dict):
        raise ValueError(f"holds a JSON {type(content).__name__}, not an object")
    return content
