"""Reads how large, how documented and how suppressed a source file is.

Owns: the limits of the style, as numbers; the exemptions, each with its reason. Each rule takes one file and returns
its violations as text.
Not here: which files a rule is applied to (`test_size`), formatting and lint (ruff).
Invariant: a file is read, never imported.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from statistics import median

FILE_LINES = 450
FUNCTION_LINES = 60
LOOP_LINES = 120
MEDIAN_LINES = 15
POSITIONAL = 2

Function = ast.FunctionDef | ast.AsyncFunctionDef

# A file whose one longest function may reach LOOP_LINES.
READS_STRAIGHT_THROUGH = {
    "src/paceline/train/loop.py": "the training loop: splitting it would hide the order of events"
}

# Signatures that somebody else calls by position: exempt are functions with exactly these positional parameters.
PROTOCOLS = {
    ("params", "model_state", "batch", "rng"): "the loss protocol, which users write too",
    ("params", "batch", "rng"): "the short form of the loss protocol",
    ("state", "batch", "valid"): "a step program, called as jax.jit calls it",
    ("updates", "state", "params"): "the update of an optax.GradientTransformation",
    ("scope", "receive", "send"): "an ASGI application",
}

PLACEHOLDER = re.compile(r"\b(TODO|FIXME|XXX)\b")
# Four or more drawing characters at either end of a comment.
BANNER = re.compile(r"^#+\s*[-=#*~_+─━═]{4,}|[-=#*~_+─━═]{4,}\s*$")
SUPPRESSION = re.compile(
    r"#\s*(?:(?:ruff:\s*)?noqa(?::\s*[A-Z]+[0-9]+(?:[,\s]+[A-Z]+[0-9]+)*)?"
    r"|type:\s*ignore(?:\[[^\]]*\])?"
    r"|pyright:\s*[a-zA-Z]+(?:=\w+)?(?:\[[^\]]*\])?)"
    r"(?P<reason>.*)$"
)
REASON = re.compile(r"\w+\W+\w+")


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def _comments(path: Path) -> Iterator[tuple[int, str]]:
    tokens = tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline)
    return ((token.start[0], token.string) for token in tokens if token.type == tokenize.COMMENT)


def _docstrings(path: Path) -> Iterator[tuple[int, str]]:
    owners = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(_tree(path)):
        if isinstance(node, owners) and (text := ast.get_docstring(node)):
            yield node.body[0].lineno, text


def _outer_functions(body: list[ast.stmt]) -> Iterator[tuple[Function, ast.ClassDef | None]]:
    """Functions of a module and methods of its classes, with the class; a nested function is part of its outer one."""
    for node in body:
        if isinstance(node, Function):
            yield node, None
        elif isinstance(node, ast.ClassDef):
            yield from ((function, owner or node) for function, owner in _outer_functions(node.body))
        elif isinstance(node, ast.If | ast.Try):
            yield from _outer_functions(node.body + node.orelse)


def _lines(function: Function) -> int:
    return function.end_lineno - function.lineno + 1


def _code_lines(function: Function) -> int:
    """Length without the docstring: a median that counted it would punish explaining."""
    if ast.get_docstring(function) is None:
        return _lines(function)
    return _lines(function) - (function.body[0].end_lineno - function.body[0].lineno + 1)


def file_too_long(path: Path) -> list[str]:
    """More than 450 lines."""
    count = len(path.read_text(encoding="utf-8").splitlines())
    return [f"{path}: {count} lines, at most {FILE_LINES}"] if count > FILE_LINES else []


def function_too_long(path: Path) -> list[str]:
    """A function of more than 60 lines, docstring and nested functions included; the training loop may reach 120."""
    functions = sorted((f for f in ast.walk(_tree(path)) if isinstance(f, Function)), key=_lines, reverse=True)
    straight = any(path.as_posix().endswith(name) for name in READS_STRAIGHT_THROUGH)
    limits = [LOOP_LINES if straight and index == 0 else FUNCTION_LINES for index in range(len(functions))]
    return [
        f"{path}:{f.lineno}: {f.name} has {_lines(f)} lines, at most {limit}"
        for f, limit in zip(functions, limits, strict=True)
        if _lines(f) > limit
    ]


def functions_long_in_the_median(path: Path) -> list[str]:
    """A median of more than 15 lines of code a function, docstrings not counted."""
    lengths = [_code_lines(function) for function, _ in _outer_functions(_tree(path).body)]
    middle = median(lengths) if lengths else 0
    return [f"{path}: the median function has {middle} lines, at most {MEDIAN_LINES}"] if middle > MEDIAN_LINES else []


def placeholder_left(path: Path) -> list[str]:
    """A note to do something later, in a comment or docstring: do it, or open an issue."""
    texts = [*_comments(path), *_docstrings(path)]
    return [f"{path}:{line}: {text.strip()[:60]}" for line, text in texts if PLACEHOLDER.search(text)]


def banner_comment(path: Path) -> list[str]:
    """A comment that draws a line: a file that needs sections is two files."""
    return [f"{path}:{line}: {text[:60]}" for line, text in _comments(path) if BANNER.search(text)]


def module_docstring_missing(path: Path) -> list[str]:
    """A module that does not open with what it owns."""
    return [] if ast.get_docstring(_tree(path)) else [f"{path}: no module docstring"]


def too_many_positional(path: Path) -> list[str]:
    """A public function or method that takes more than two arguments by position, self and cls not counted."""
    found = []
    for function, owner in _outer_functions(_tree(path).body):
        names = tuple(argument.arg for argument in [*function.args.posonlyargs, *function.args.args])
        static = any(ast.unparse(decorator) == "staticmethod" for decorator in function.decorator_list)
        if owner is not None and not static:
            names = names[1:]
        private = function.name.startswith("_") or (owner is not None and owner.name.startswith("_"))
        if len(names) > POSITIONAL and not private and names not in PROTOCOLS:
            found.append(f"{path}:{function.lineno}: {function.name}{names} takes {len(names)} by position")
    return found


def suppression_without_reason(path: Path) -> list[str]:
    """A noqa, type: ignore or pyright comment that does not say why, in two words or more, on its line."""
    return [
        f"{path}:{line}: {text}"
        for line, text in _comments(path)
        if (match := SUPPRESSION.search(text)) and not REASON.search(match["reason"])
    ]
