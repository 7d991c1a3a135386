"""A file that grows, is replaced, is torn."""

from __future__ import annotations

import os

import pytest

from paceline.dashboard.follow.tail import LONGEST_LINE_BYTES, Tail


@pytest.fixture
def path(tmp_path):
    return tmp_path / "events-0.jsonl"


def read_all(tail: Tail, *, limit_bytes: int = 50) -> list[bytes]:
    tail.look()
    lines = []
    while tail.unread_bytes:
        piece = tail.read(limit_bytes)
        if not piece.content:
            break
        assert piece.content.endswith(b"\n")
        lines += piece.content.splitlines()
    return lines


@pytest.mark.parametrize("limit_bytes", [1, 7, 50, 10_000])
def test_whole_lines_come_once_and_in_order_whatever_a_read_takes(path, limit_bytes):
    """Also lines that are longer than one read."""
    lines = [b"x" * (number * 13 % 40) + b"%d" % number for number in range(100)]
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    assert read_all(Tail(path, root=path.parent), limit_bytes=limit_bytes) == lines


def test_a_torn_last_line_comes_when_it_is_whole(path):
    path.write_bytes(b"one\ntw")
    tail = Tail(path, root=path.parent)
    assert read_all(tail) == [b"one"]
    with open(path, "ab") as file:
        file.write(b"o\nthree\n")
    assert read_all(tail) == [b"two", b"three"]


def test_a_file_that_did_not_change_is_the_same(path):
    path.write_bytes(b"one\n")
    tail = Tail(path, root=path.parent)
    assert [tail.look(), tail.look()] == ["grown", "same"]


def replaced_by_another_file(path):
    path.rename(path.with_suffix(".old"))
    path.write_bytes(b"new one\nnew two\nnew three\n")


def cut_shorter(path):
    os.truncate(path, 0)
    with open(path, "ab") as file:
        file.write(b"new one\n")


def rewritten_longer(path):
    with open(path, "r+b") as file:
        file.truncate(0)
        file.write(b"new one\n" * 20)


@pytest.mark.parametrize("change", [replaced_by_another_file, cut_shorter, rewritten_longer])
def test_another_content_under_the_same_name_begins_anew(path, change):
    """Another file, a shorter one, or the same file written over: told, read from the start, under another name."""
    path.write_bytes(b"old one\nold two\n")
    tail = Tail(path, root=path.parent)
    read_all(tail)
    before = tail.generation
    change(path)
    assert tail.look() == "replaced"
    assert read_all(tail)[0] == b"new one"
    assert tail.generation != before


def test_the_generation_is_the_same_for_another_reader(path):
    """A server that was started again knows the positions of the one before."""
    path.write_bytes(b"one\ntwo\n")
    tails = [Tail(path, root=path.parent), Tail(path, root=path.parent)]
    read_all(tails[0], limit_bytes=4)
    read_all(tails[1], limit_bytes=1000)
    assert tails[0].generation == tails[1].generation != ""


def test_a_file_that_is_not_there_is_gone_until_it_comes(path):
    tail = Tail(path, root=path.parent)
    assert tail.look() == "gone"
    path.write_bytes(b"one\n")
    assert tail.look() == "grown"
    path.unlink()
    assert tail.look() == "gone"


def test_what_is_no_file_is_never_opened(path):
    """A named pipe would block the reader for ever."""
    os.mkfifo(path)
    assert Tail(path, root=path.parent).look() == "gone"


def test_a_line_without_end_is_passed_over(path):
    """A megabyte without a newline is no event, and told as one line; what comes after it is read."""
    path.write_bytes(b"x" * (3 * LONGEST_LINE_BYTES + 100_000) + b"\nnext\n")
    tail = Tail(path, root=path.parent)
    tail.look()
    pieces = []
    while tail.unread_bytes:
        pieces.append(tail.read(300_000))
    assert b"".join(piece.content for piece in pieces) == b"next\n"
    assert sum(piece.passed_over for piece in pieces) == 1
