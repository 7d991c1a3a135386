"""Documents that cannot be read just now."""

from __future__ import annotations

import errno
import os

import pytest

from paceline.dashboard.follow import documents as documents_module
from paceline.dashboard.follow.documents import RETRY_S, Document


class Clock:
    def __init__(self) -> None:
        self.now_s = 10.0

    def __call__(self) -> float:
        return self.now_s


@pytest.mark.parametrize("code", [errno.EMFILE, errno.EIO, errno.EACCES])
def test_a_read_that_was_refused_is_tried_again_each_second(tmp_path, monkeypatch, code):
    """The file itself does not change meanwhile."""
    path = tmp_path / "run.json"
    path.write_text('{"task": "image"}')
    clock = Clock()
    document = Document(path, root=tmp_path, monotonic=clock)
    tries: list[float] = []

    def refuse(path, *, root):
        tries.append(clock.now_s)
        raise OSError(code, "refused")

    with monkeypatch.context() as patch:
        patch.setattr(documents_module, "opened_inside", refuse)
        assert document.refresh()
        assert document.problem is not None
        for _ in range(25):
            clock.now_s += RETRY_S / 10
            assert not document.refresh()
    assert len(tries) == 3
    clock.now_s += RETRY_S
    assert document.refresh()
    assert (document.content, document.problem) == ({"task": "image"}, None)


def test_a_damaged_document_is_not_read_again_until_it_changes(tmp_path, monkeypatch):
    path = tmp_path / "run.json"
    path.write_text("{")
    clock = Clock()
    document = Document(path, root=tmp_path, monotonic=clock)
    document.refresh()
    monkeypatch.setattr(documents_module, "opened_inside", lambda path, *, root: pytest.fail("read again"))
    clock.now_s += 100
    assert not document.refresh()


def test_a_pipe_in_place_of_a_document_is_told_in_words(tmp_path):
    """It is not opened: nobody writes to it."""
    os.mkfifo(tmp_path / "run.json")
    document = Document(tmp_path / "run.json", root=tmp_path)
    assert document.refresh() and document.content is None
    assert document.problem is not None
    assert dict(document.problem.values)["reason"] == "a named pipe lies there, not a file"
