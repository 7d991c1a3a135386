"""Which functions of Paceline have their annotations checked while tests run, and by what.

Owns: the checker that `conftest` hands to jaxtyping's import hook, and the decorator that the hook applies.
Invariant: every function is checked, except `__init__`; one that names a jaxtyping type has its dimensions compared.
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable
from typing import Any

import jaxtyping
from beartype import beartype


def check(function: Callable[..., Any]) -> Callable[..., Any]:
    """Beartype, but not for `__init__`.

    jaxtyping also wraps the `__init__` of dataclasses. There jax puts what is no array into a state that is a pytree
    (`ArgInfo` when it lowers a step), and our own validation has to see a user's wrong value first.
    """
    return function if function.__name__ == "__init__" else beartype(function)


_jaxtyped = jaxtyping.jaxtyped


def install_checks(package: str) -> None:
    """Checks every function of a package that is imported from here on.

    The hook decorates each function with `jaxtyping.jaxtyped`, whose wrapper binds the call's signature to compare
    dimensions, whether the function names an array or not. Most name none, so `_checked` takes its place, which hands
    those to beartype alone: the tests of plans, which call small functions most, take half the time.
    """
    jaxtyping.install_import_hook(package, f"{__name__}.{check.__name__}")
    jaxtyping.jaxtyped = _checked


def _checked(*, typechecker: Callable[..., Any]) -> Callable[[Any], Any]:
    """`jaxtyping.jaxtyped`, for what needs it."""

    def decorate(subject: Any) -> Any:
        if inspect.isclass(subject):  # its methods are decorated one by one; what a dataclass adds is its `__init__`
            return subject
        if inspect.isfunction(subject) and not _needs_shapes(subject):
            return _while_enabled(subject, check(subject))
        return _jaxtyped(typechecker=typechecker)(subject)

    return decorate


def _while_enabled(function: Callable[..., Any], checked: Callable[..., Any]) -> Callable[..., Any]:
    """The checked function, but the bare one while `jaxtyping.config.jaxtyping_disable` is set, as jaxtyping's are."""
    if checked is function:  # nothing to check
        return function
    config = jaxtyping.config

    @functools.wraps(function)
    def either(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        return (function if config.jaxtyping_disable else checked)(*args, **kwargs)

    # As jaxtyping's own wrapper would be, of an installed package: Paceline takes any other file for one of the user's.
    for wrapper in (checked, either):
        wrapper.__code__ = wrapper.__code__.replace(co_filename=_jaxtyped.__code__.co_filename)
    return either


def _needs_shapes(function: Callable[..., Any]) -> bool:
    """Whether an annotation names a jaxtyping type, or is one that only jaxtyping lets pass.

    Of a closure too: beartype keeps what it has decorated for ever, and with it all that the closure holds, such as the
    arrays of a state. jaxtyping gives it a function with the same annotations and no content.
    """
    if "<locals>" in function.__qualname__:
        return True
    try:
        hints = typing.get_type_hints(function)
    except Exception:  # whatever an annotation raises that cannot be evaluated here
        return True
    return any(map(_names_array, hints.values()))


def _names_array(hint: Any) -> bool:
    """Whether a type is one of jaxtyping's, or has one inside."""
    return getattr(hint, "__module__", "").startswith("jaxtyping") or any(map(_names_array, typing.get_args(hint)))
