"""A sentence that people in two languages must read: its key, the values in it, and the English text.

Owns: the form in which sentences go to the page; words of foreign files made safe for a terminal.
Not here: the sentences (`follow.words`, `compare.words`, `compare.told`), the page's languages (`assets/words`).
Invariant: key and values say all that the text says. A value is a number, a text that is the same in every language
(a name, a number with its unit), a sentence, or a list of these.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Words(NamedTuple):
    """A sentence: its key, the values in it, and the English text."""

    key: str
    values: Mapping[str, Any]
    text: str

    def as_dict(self) -> dict[str, Any]:
        """As the page gets it."""
        values = {name: _as_plain(value) for name, value in self.values.items()}
        return {"key": self.key, "values": values, "text": self.text}


def spoken(key: str, values: Mapping[str, Any], *, table: Mapping[str, str]) -> Words:
    """The sentence ``key`` of a table of English sentences, with its values."""
    return Words(key, values, table[key].format_map({name: _as_text(value) for name, value in values.items()}))


def printable(text: object) -> str:
    """Words from a file on one line, without what a terminal would obey."""
    return "".join(character if character.isprintable() else " " for character in str(text))


def as_dict(words: Words | None) -> dict[str, Any] | None:
    """As the page gets it; None for nothing said."""
    return None if words is None else words.as_dict()


def _as_text(value: Any) -> Any:
    """What stands for a value in the text; numbers stay, since a sentence says how they are written."""
    if isinstance(value, Words):
        return value.text
    return ", ".join(str(_as_text(one)) for one in value) if isinstance(value, list) else value


def _as_plain(value: Any) -> Any:
    if isinstance(value, Words):
        return value.as_dict()
    return [_as_plain(one) for one in value] if isinstance(value, list) else value
