"""Cursors come back; anything else is refused."""

from __future__ import annotations

import base64
import zlib

import pytest

from paceline.dashboard.follow.cursor import LONGEST_CURSOR, Position, decode_cursor, encode_cursor


def test_positions_of_several_runs_come_back():
    """Names of any script, many processes, offsets beyond 32 bits."""
    positions = {
        "sweep/läuft-1": {process: Position(f"a{process:x}-9f", 10**12 + process) for process in range(64)},
        "运行": {0: Position("", 0)},
        "empty": {},
    }
    text = encode_cursor(positions)
    assert decode_cursor(text) == positions
    assert text.isascii()
    assert not set(text) - set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")


@pytest.mark.parametrize(
    "text",
    ["x", "not a cursor", "é", "AAAA", "A" * (LONGEST_CURSOR + 1), encode_cursor({"a": {0: Position("g", 1)}})[:-4]],
)
def test_other_texts_are_refused(text):
    with pytest.raises(ValueError, match="cursor"):
        decode_cursor(text)


def test_a_text_that_unpacks_to_very_much_is_refused():
    """A small cursor cannot make the server take gigabytes."""
    bomb = base64.urlsafe_b64encode(zlib.compress(b"\0" * 50_000_000)).decode()
    with pytest.raises(ValueError, match="cursor"):
        decode_cursor(bomb)


def test_offsets_before_the_file_are_refused():
    with pytest.raises(ValueError, match="cursor"):
        decode_cursor(encode_cursor({"a": {0: Position("g", -1)}}))
