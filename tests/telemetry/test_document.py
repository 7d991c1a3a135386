"""JSON documents that are whole or absent."""

from __future__ import annotations

import dataclasses
import enum
import json
import math
import os
from pathlib import Path

import numpy as np
import pytest

from paceline.telemetry.document import plain, read_document, write_document


class Scheme(enum.Enum):
    GLOBAL_VIEW = "global_view"


@dataclasses.dataclass(frozen=True)
class Options:
    devices: int
    scheme: Scheme
    path: Path


@pytest.mark.parametrize(
    "value, expected",
    [
        (Options(4, Scheme.GLOBAL_VIEW, Path("a/b")), {"devices": 4, "scheme": "global_view", "path": "a/b"}),
        ({1: (math.nan, math.inf, -math.inf)}, {"1": ["nan", "inf", "-inf"]}),
        ([np.float32(0.5), np.int64(3), np.array([1, 2]), np.bool_(True)], [0.5, 3, [1, 2], True]),
        ({"b", "a"}, ["a", "b"]),
        (np.dtype("float32"), "float32"),
        (np.array(math.nan), "nan"),
        ([None, True, 2**80], [None, True, 2**80]),
        (np.array(1j), "1j"),
    ],
)
def test_any_value_becomes_plain_json(value, expected):
    """What JSON has no form for becomes its words: a document must not stop a run."""
    assert plain(value) == expected


def test_a_document_is_indented_strict_json(tmp_path):
    """The text by pencil, for people and for browsers."""
    file = tmp_path / "run.json"
    write_document(file, {"name": "größer", "loss": math.nan})
    assert file.read_text("utf-8") == '{\n  "name": "größer",\n  "loss": "nan"\n}\n'
    assert read_document(file) == {"name": "größer", "loss": "nan"}


def test_words_that_are_no_unicode_do_not_stop_a_document(tmp_path):
    """A file name that is not UTF-8 survives the way there and back."""
    write_document(tmp_path / "run.json", {"path": "b\udce4r"})
    assert read_document(tmp_path / "run.json") == {"path": "b\udce4r"}


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_full_disk_leaves_the_old_document_and_nothing_else(tmp_path, monkeypatch, call):
    """Whichever step fails."""
    file = tmp_path / "report.json"
    write_document(file, {"old": 1})

    def fail(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(OSError):
        patch.setattr(os, call, fail)
        write_document(file, {"new": 2})
    assert json.loads(file.read_text()) == {"old": 1}
    assert os.listdir(tmp_path) == ["report.json"]


@pytest.mark.parametrize("content", [b"", b"[1]", b"{", b"\xff", b"[" * 100_000])
def test_what_is_no_json_object_raises_value_error(tmp_path, content):
    """Readers turn this one error into words."""
    (tmp_path / "run.json").write_bytes(content)
    with pytest.raises(ValueError):
        read_document(tmp_path / "run.json")


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir], ids=["pipe", "folder"])
def test_what_is_no_file_is_an_error_and_no_waiting(tmp_path, make):
    """Nobody writes to the pipe."""
    make(tmp_path / "run.json")
    with pytest.raises(OSError, match="lies there, not a file"):
        read_document(tmp_path / "run.json")
