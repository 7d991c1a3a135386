"""The user's file and the modules beside it that it imports, as syntax trees.

Owns: reading, decoding and parsing; what is said of a file that cannot be read.
Invariant: nothing is imported or run; a file that was not read is named in a finding.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from paceline.base.units import format_bytes
from paceline.doctor.finding import Finding
from paceline.doctor.source.project import Project, SourceFile

LARGEST_BYTES = 2_000_000
"""A larger file is data, not code that someone wrote."""


def read_project(path: str | Path) -> tuple[Project, list[Finding]]:
    """The file and, recursively, the modules of its folder that it imports, with a finding for each unreadable one."""
    first = Path(path)
    files: dict[str, SourceFile] = {}
    findings: list[Finding] = []
    queue, seen = [first], {first.resolve()}
    while queue:
        current = queue.pop(0)
        tree = _parse(current)
        if isinstance(tree, Finding):
            findings.append(tree)
            continue
        source = SourceFile(str(current), tree)
        files[current.stem] = source
        neighbours = [found for found in _neighbours(tree, current.parent) if found.resolve() not in seen]
        seen.update(found.resolve() for found in neighbours)
        queue.extend(neighbours)
    return Project(files), findings


def _parse(path: Path) -> ast.Module | Finding:
    """The syntax tree, or why there is none."""
    try:
        size = path.stat().st_size
        if size > LARGEST_BYTES:
            limit = f"not read: the file has {format_bytes(size)}, more than {format_bytes(LARGEST_BYTES)}"
            return Finding("source", "warning", limit, "keep the task in a file of its own", str(path))
        content = path.read_bytes()
    except OSError as error:
        return _unreadable(path, f"cannot be read: {error.strerror}", "check the path and its permissions")
    if not content.strip():
        return _unreadable(path, "the file is empty", "define task() or recipe in it")
    try:
        return ast.parse(content, filename=str(path))
    except SyntaxError as error:
        fix = "save the file as UTF-8" if _is_decoding(error) else "correct the syntax there"
        return _unreadable(path, f"Python cannot read the file: {error.msg}", fix, error.lineno or None)
    except (ValueError, RecursionError, MemoryError) as error:
        return _unreadable(path, f"Python cannot read the file: {error}", "correct the syntax there")


def _is_decoding(error: SyntaxError) -> bool:
    return "codec" in (error.msg or "") or "encoding" in (error.msg or "") or "utf-8" in (error.msg or "").lower()


def _unreadable(path: Path, what: str, fix: str, line: int | None = None) -> Finding:
    return Finding("source", "error", what, fix, str(path), line)


def _neighbours(tree: ast.Module, folder: Path) -> Iterator[Path]:
    """Files of the same folder that the module imports."""
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level <= 1:
            names = [node.module] if node.module else [alias.name for alias in node.names]
        for name in names:
            candidate = folder / f"{name.split('.')[0]}.py"
            if candidate.is_file():
                yield candidate
