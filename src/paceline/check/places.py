"""Where in the user's files an equation of a jaxpr comes from.

Owns: `Site`, which names an equation at no cost, and its translation to ``file:line``.
Invariant: a place is a line of the user's, or None; never a line of JAX, of an installed package or of Paceline.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from paceline.engine.usercode import is_ours, is_user_file


class Site(NamedTuple):
    """An equation, and where to look if it is not the user's own.

    Args:
      equation: the equation.
      outer: the call that holds it, for example the `jit` of a library function that the user called.
      before: the site of the operand that it was computed from.
    """

    equation: Any
    outer: Site | None
    before: Site | None = None


def place(site: Site | None) -> str | None:
    """``file:line`` of the user's line nearest to a site, or None if there is none."""
    while site is not None:
        for equation in enclosing(site):
            found = _user_line(equation)
            if found is not None:
                return found
        site = site.before
    return None


def enclosing(site: Site) -> Iterator[Any]:
    """The equation of a site, then the calls that hold it, inside out."""
    inner: Site | None = site
    while inner is not None:
        yield inner.equation
        inner = inner.outer


def _user_line(equation: Any) -> str | None:
    """Stops at Paceline's own frames: what lies outside them is the call of a trainer, not the cause."""
    traceback = equation.source_info.traceback
    for frame in () if traceback is None else traceback.frames:
        if is_ours(frame.file_name):
            return None
        if is_user_file(frame.file_name):
            return f"{frame.file_name}:{frame.line_num}"
    return None
