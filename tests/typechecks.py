"""Which functions of Paceline have their annotations checked while tests run.

Owns: the checker that `conftest` hands to jaxtyping's import hook.
Invariant: every function is checked, except `__init__`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from beartype import beartype


def check(function: Callable[..., Any]) -> Callable[..., Any]:
    """Beartype, but not for `__init__`.

    jaxtyping also wraps the `__init__` of dataclasses. There jax puts what is no array into a state that is a pytree
    (`ArgInfo` when it lowers a step), and our own validation has to see a user's wrong value first.
    """
    return function if function.__name__ == "__init__" else beartype(function)
