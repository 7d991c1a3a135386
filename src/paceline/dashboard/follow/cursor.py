"""Where a reader of the stream is, as one opaque text.

Owns: positions in the events files of several runs, and their text form.
Not here: reading from a position (`follow.run`).
Invariant: decoding what was encoded gives it back; any other text is refused, whatever it holds. A text is never longer
than a header may be: in place of a longer one stands `ANEW`.

A process takes some 8 to 14 bytes of the packed form, most of them checksums: a whole number each for its index,
counted from the one before, for the form of its generation and for the offset, and the generation in this form.
"""

from __future__ import annotations

import base64
import re
import zlib
from collections.abc import Mapping
from typing import NamedTuple

LONGEST_CURSOR = 24 * 1024
ANEW = "anew"
"""Says nothing of positions: who goes on from it fetches everything again."""

_LARGEST_BYTES = 1024 * 1024
_LARGEST_NUMBER = 2**63 - 1
_DIGEST_BYTES = 4
_DIGEST = re.compile(r"\+[0-9a-f]{8}")
_NUMBERED = re.compile(r"(0|[1-9a-f][0-9a-f]{0,14})-(0|[1-9a-f][0-9a-f]{0,7})")
_AS_TEXT, _AS_DIGEST, _AS_NUMBERS, _FORMS = range(4)


class Position(NamedTuple):
    """How far one events file was read.

    Args:
      generation: which file it was: another one under the same name has another generation.
      offset: bytes read, always whole lines.
    """

    generation: str
    offset: int


Positions = dict[str, dict[int, Position]]
"""By run id and process."""


def encode_cursor(positions: Mapping[str, Mapping[int, Position]]) -> str:
    """The positions as text that fits an HTTP header and a URL; `ANEW` if they are too many for one."""
    packed = bytearray()
    for run, processes in positions.items():
        _put_bytes(packed, run.encode())
        _put(packed, len(processes))
        before = 0
        for process, position in sorted(processes.items()):
            _put(packed, process - before)
            _put_position(packed, position)
            before = process
    text = base64.urlsafe_b64encode(zlib.compress(packed, 1)).rstrip(b"=").decode("ascii")
    return text if len(text) <= LONGEST_CURSOR and len(packed) < _LARGEST_BYTES else ANEW


def decode_cursor(text: str) -> Positions:
    """The positions of `encode_cursor`.

    Raises: ValueError: it is no cursor; `ANEW` is none either.
    """
    if len(text) > LONGEST_CURSOR:
        raise ValueError("too long for a cursor")
    try:
        packed = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        unpacker = zlib.decompressobj()
        content = unpacker.decompress(packed, _LARGEST_BYTES)
        if not unpacker.eof or unpacker.unused_data:
            raise ValueError("more than a cursor")
        return _Unpacked(content).positions()
    except (ValueError, IndexError, zlib.error) as error:  # also of base64 and UTF-8
        raise ValueError("not a cursor") from error


def _put(packed: bytearray, number: int) -> None:
    if not 0 <= number <= _LARGEST_NUMBER:
        raise ValueError(f"{number} is no place in a file: it fits no cursor")
    while number > 127:
        packed.append(number & 127 | 128)
        number >>= 7
    packed.append(number)


def _put_bytes(packed: bytearray, content: bytes) -> None:
    _put(packed, len(content))
    packed += content


def _put_position(packed: bytearray, position: Position) -> None:
    generation, offset = position
    numbers = _NUMBERED.fullmatch(generation)
    form = _AS_DIGEST if _DIGEST.fullmatch(generation) else _AS_NUMBERS if numbers else _AS_TEXT
    _put(packed, form)
    _put(packed, offset)
    if numbers:
        _put(packed, int(numbers[1], 16))
        packed += int(numbers[2], 16).to_bytes(_DIGEST_BYTES, "big")
    elif form == _AS_DIGEST:
        packed += bytes.fromhex(generation[1:])
    else:
        _put_bytes(packed, generation.encode())


class _Unpacked:
    """Reads what `encode_cursor` packed. Raises: ValueError, IndexError: it did not."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0

    def positions(self) -> Positions:
        found: Positions = {}
        while self._at < len(self._content):
            run = self._bytes(self._number()).decode()
            process, found[run] = 0, {}
            for _ in range(self._number()):
                process += self._number()
                found[run][process] = self._position()
        return found

    def _position(self) -> Position:
        form, offset = self._number(), self._number()
        if form >= _FORMS:
            raise ValueError("of another version")
        if form == _AS_DIGEST:
            return Position(f"+{self._bytes(_DIGEST_BYTES).hex()}", offset)
        if form == _AS_NUMBERS:
            return Position(f"{self._number():x}-{int.from_bytes(self._bytes(_DIGEST_BYTES), 'big'):x}", offset)
        return Position(self._bytes(self._number()).decode(), offset)

    def _number(self) -> int:
        number, byte = 0, 128
        for shift in range(0, 64, 7):
            byte = self._content[self._at]
            self._at += 1
            number |= (byte & 127) << shift
            if byte < 128:
                break
        if number > _LARGEST_NUMBER or byte > 127:
            raise ValueError("a number that is too large")
        return number

    def _bytes(self, count: int) -> bytes:
        if count > len(self._content) - self._at:
            raise ValueError("cut off")
        self._at += count
        return self._content[self._at - count : self._at]
