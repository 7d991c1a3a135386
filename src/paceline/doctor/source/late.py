"""Settings of devices that a file makes after it has used one: they have no effect any more.

Owns: XLA_FLAGS, JAX_PLATFORMS and options of `jax.config` that JAX reads at the first use of a device.
Not here: the same at run time (`topology.devices`), a flag that XLA does not know (`doctor.environment.flags`).
Invariant: a line is named only if it comes after the use in the same block of statements, in the order they run.
"""

from __future__ import annotations

import ast

from paceline.doctor.finding import Finding, Level
from paceline.doctor.source.project import SourceFile

_VARIABLES = frozenset(
    {"XLA_FLAGS", "JAX_PLATFORMS", "JAX_PLATFORM_NAME", "JAX_NUM_CPU_DEVICES", "CUDA_VISIBLE_DEVICES",
     "XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_PREALLOCATE"}
)  # fmt: skip
_OPTIONS = frozenset({"jax_platforms", "jax_platform_name", "jax_num_cpu_devices"})
_USES = frozenset(
    f"jax.{name}"
    for name in (
        "devices", "local_devices", "device_count", "local_device_count", "default_backend", "process_index",
        "process_count", "device_put", "make_mesh", "make_array_from_callback", "block_until_ready",
    )
)  # fmt: skip
_MODULES = ("jax.numpy.", "jax.random.")
_NO_ARRAY = frozenset({"dtype", "finfo", "iinfo", "issubdtype", "result_type", "promote_types", "printoptions"})
Use = tuple[int, str]
"""Line and name of a call that uses a device."""
_DEFERRED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


def late_settings(file: SourceFile) -> list[Finding]:
    """One finding for each setting that comes too late, in the order of lines."""
    scopes: list[ast.AST] = [file.tree, *(node for node in ast.walk(file.tree) if isinstance(node, _DEFERRED[:2]))]
    found: list[Finding] = []
    for scope in scopes:
        _children(file, scope, None, found)
    return sorted(found, key=lambda finding: finding.line or 0)


def _children(file: SourceFile, node: ast.AST, used: Use | None, found: list[Finding]) -> Use | None:
    """Walk what a node holds as it runs, but no bodies of functions, which run at another time."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, _DEFERRED):
            used = _visit(file, child, used, found)
    return used


def _visit(file: SourceFile, node: ast.AST, used: Use | None, found: list[Finding]) -> Use | None:
    """The first use of a device up to the end of a node. Of the branches of an ``if`` only one runs."""
    if isinstance(node, ast.If):
        used = _visit(file, node.test, used, found)
        ends = [_children(file, ast.Module(branch, []), used, found) for branch in (node.body, node.orelse)]
        return next((end for end in ends if end is not None), None)
    used = _children(file, node, used, found)
    name = _setting(file, node)
    if name is not None and used is not None and node not in file.guarded:
        found.append(_late(file, node, name, used=used))
    elif used is None and isinstance(node, ast.Call) and (use := _use(file, node)) is not None:
        return node.lineno, use
    return used


def _late(file: SourceFile, node: ast.AST, name: str, *, used: Use) -> Finding:
    line, use = used
    counts = name in ("XLA_FLAGS", "jax_num_cpu_devices")
    what = f"{name} is set after {use} in line {line} has used a device, and is not read any more"
    what += ": there will still be the devices of before" if counts else ""
    fix = f"move it above line {line}" + (", best above import jax, or set it in the shell" if name.isupper() else "")
    fix += "; or call paceline.simulate_devices(K) there" if counts else ""
    level: Level = "error" if counts or name in _OPTIONS else "warning"  # others may be meant for child processes
    return Finding("source", level, what, fix, file.path, getattr(node, "lineno", None))


def _use(file: SourceFile, call: ast.Call) -> str | None:
    name = file.dotted(call.func) or ""
    if name in _USES:
        return name
    is_array = name.startswith(_MODULES) and name.rpartition(".")[2] not in _NO_ARRAY
    return name if is_array else None


def _setting(file: SourceFile, node: ast.AST) -> str | None:
    """The variable or option that a statement sets; None if it sets none of these."""
    if isinstance(node, ast.Assign | ast.AugAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        names = [_key(file, target) for target in targets]
        return next((name for name in names if name is not None), None)
    if isinstance(node, ast.Call):
        called, first = file.dotted(node.func), file.literal(node.args[0]) if node.args else None
        if called == "os.environ.setdefault" or called == "os.putenv":
            return str(first) if first in _VARIABLES else None
        if called == "os.environ.update":
            given = {keyword.arg for keyword in node.keywords} | set(first if isinstance(first, dict) else ())
            return next((str(name) for name in sorted(map(str, given)) if name in _VARIABLES), None)
        if called == "jax.config.update" and first in _OPTIONS:
            return str(first)
    return None


def _key(file: SourceFile, target: ast.expr) -> str | None:
    if not isinstance(target, ast.Subscript) or file.dotted(target.value) != "os.environ":
        return None
    key = file.literal(target.slice)
    return str(key) if key in _VARIABLES else None
