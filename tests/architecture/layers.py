"""Reads the imports of a package from its sources and compares them with its layers.

Owns: the table of layers (docs: CONTRIBUTING.md), the import graph, the rules on it. Each returns violations as text.
Not here: the tests (`test_layers`), what an import loads at run time (`test_imports`).
Invariant: nothing under test is imported; an import inside a function counts like one at the top.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# Top to bottom. A package imports from rows below its own, and from itself; never from its row's other packages.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("__init__",),
    ("cli",),
    ("recipes", "doctor", "measure"),
    ("train", "launch", "dashboard"),
    ("check", "insight"),
    ("checkpoint", "data"),
    ("engine",),
    ("tasks", "topology"),
    ("telemetry",),
    ("base",),
)
ROW = {package: row for row, packages in enumerate(LAYERS) for package in packages}

WITHOUT_JAX = ("base", "dashboard", "launch", "telemetry")
# jax, and what imports jax itself: a page that is watched must start at once, and a run must be readable without jax.
JAX_FAMILY = frozenset({"chex", "equinox", "flax", "jax", "jaxlib", "optax", "orbax"})


@dataclass(frozen=True)
class Import:
    """One imported name: in which module, what (`paceline.engine.state`), on which line."""

    importer: str
    target: str
    line: int
    for_types_only: bool = False


def module_name(path: Path, *, src: Path) -> str:
    """Dotted name of a source file: `src/paceline/engine/__init__.py` is `paceline.engine`."""
    parts = path.relative_to(src).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def modules(package: Path) -> dict[str, Path]:
    """Every module of a package, by dotted name."""
    return {module_name(path, src=package.parent): path for path in sorted(package.rglob("*.py"))}


def imports(package: Path) -> list[Import]:
    """Every import in a package, with names resolved to modules where a module of that name exists."""
    known = modules(package)
    found = []
    for importer, path in known.items():
        is_package = path.name == "__init__.py"
        tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
        typing_lines = _type_checking_lines(tree)
        for target, line in _targets(tree, importer=importer, is_package=is_package, known=known):
            found.append(Import(importer, target, line, for_types_only=is_package and line in typing_lines))
    return found


def _targets(tree: ast.AST, *, importer: str, is_package: bool, known: dict[str, Path]) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(node, importer=importer, is_package=is_package)
            for alias in node.names:
                submodule = f"{base}.{alias.name}"
                yield (submodule if submodule in known else base), alias.lineno
        elif isinstance(node, ast.Call) and (name := _dynamic_import(node)):
            yield name, node.lineno


def _absolute(node: ast.ImportFrom, *, importer: str, is_package: bool) -> str:
    if node.level == 0:
        return node.module or ""
    anchor = importer.split(".")
    anchor = anchor[: len(anchor) - node.level + is_package]
    return ".".join([*anchor, node.module] if node.module else anchor)


def _dynamic_import(node: ast.Call) -> str | None:
    """The module that `importlib.import_module("x")` or `__import__("x")` names, if it is spelled out."""
    called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", None)
    if called not in ("import_module", "__import__") or not node.args or not isinstance(node.args[0], ast.Constant):
        return None
    return node.args[0].value if isinstance(node.args[0].value, str) else None


def _type_checking_lines(tree: ast.AST) -> set[int]:
    """Lines inside `if TYPE_CHECKING:`."""
    blocks = [n for n in ast.walk(tree) if isinstance(n, ast.If) and ast.unparse(n.test).endswith("TYPE_CHECKING")]
    return {line for block in blocks for child in block.body for line in range(child.lineno, child.end_lineno + 1)}


def unit(module: str) -> str:
    """The row entry that a module belongs to: `paceline.engine.state` is `engine`, `paceline` is `__init__`."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def unknown_packages(package: Path) -> list[str]:
    """Modules that no layer holds."""
    return [
        f"{path}: no layer holds '{unit(name)}'" for name, path in modules(package).items() if unit(name) not in ROW
    ]


def upward_imports(package: Path) -> list[str]:
    """Imports that go up, or sideways within a row. Type-only imports are no exception: they couple just as much."""
    root = package.name
    inside = [i for i in imports(package) if i.target.split(".")[0] == root]
    pairs = [(i, unit(i.importer), unit(i.target)) for i in inside]
    return [
        f"{i.importer}:{i.line}: '{above}' imports '{below}'"
        for i, above, below in pairs
        if above != below and above in ROW and ROW.get(below, len(LAYERS)) <= ROW[above]
    ]


def forbidden_jax_imports(package: Path) -> list[str]:
    """Imports of jax, or of what imports jax, where there must be none."""
    return [
        f"{i.importer}:{i.line}: imports {i.target}"
        for i in imports(package)
        if unit(i.importer) in WITHOUT_JAX and i.target.split(".")[0] in JAX_FAMILY
    ]


def forbidden_names(package: Path) -> list[str]:
    """Modules named after nothing: what would go into `utils` belongs to the layer that needs it."""
    return [str(path) for name, path in modules(package).items() if {"util", "utils"} & set(name.split("."))]


def cycles(package: Path) -> list[str]:
    """Groups of modules that import each other, lazily or not.

    Only what is spelled out counts: `import a.b` also runs `a/__init__.py`, which no submodule can avoid.
    Type-only re-exports in an `__init__.py` do not run, so they are left out.
    """
    known = modules(package)
    graph: dict[str, set[str]] = {name: set() for name in known}
    for i in imports(package):
        if i.target in known and i.target != i.importer and not i.for_types_only:
            graph[i.importer].add(i.target)
    reach = {name: _reachable(name, graph=graph) for name in graph}
    groups = {tuple(sorted(n for n in reach[name] if name in reach[n])) for name in graph if name in reach[name]}
    return [f"import cycle: {' <-> '.join(group)}" for group in sorted(groups)]


def _reachable(start: str, *, graph: dict[str, set[str]]) -> set[str]:
    seen: set[str] = set()
    frontier = set(graph[start])
    while frontier:
        seen |= frontier
        frontier = {target for name in frontier for target in graph[name]} - seen
    return seen
