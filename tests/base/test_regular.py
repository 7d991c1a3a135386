"""Only regular files are read, and the error says what lies there instead."""

from __future__ import annotations

import os
import socket

import pytest

from paceline.base.regular import in_place_of, read_regular, reason


def test_a_file_is_read_through_links_too(tmp_path):
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "link").symlink_to("file")
    assert read_regular(tmp_path / "file") == read_regular(tmp_path / "link") == b"content"


def make(path, kind):
    if kind == "a named pipe":
        os.mkfifo(path)
    elif kind == "a folder":
        path.mkdir()
    elif kind == "a device":
        path.symlink_to("/dev/zero")
    elif kind == "a link that leads nowhere":
        path.symlink_to("nowhere")
    elif kind == "a socket":
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(os.path.relpath(path))


@pytest.mark.parametrize("kind", ["a named pipe", "a folder", "a device", "a link that leads nowhere", "a socket"])
def test_anything_else_is_an_error_in_words_and_no_waiting(tmp_path, monkeypatch, kind):
    """A pipe without a writer waits for ever, /dev/zero has no end."""
    monkeypatch.chdir(tmp_path)
    make(tmp_path / "report.json", kind)
    with pytest.raises(OSError, match=f"{kind} lies there") as caught:
        read_regular(tmp_path / "report.json")
    assert reason(caught.value) == in_place_of(tmp_path / "report.json") == f"{kind} lies there, not a file"
    assert not isinstance(caught.value, FileNotFoundError)  # which readers take for a document that is not written yet


def test_a_file_that_is_not_there_is_missing(tmp_path):
    with pytest.raises(FileNotFoundError, match="No such file"):
        read_regular(tmp_path / "report.json")
    assert in_place_of(tmp_path / "report.json") is None
    (tmp_path / "report.json").touch()
    assert in_place_of(tmp_path / "report.json") is None
