"""Settings of devices that a file makes after it has used one: they have no effect any more.

Owns: XLA_FLAGS, JAX_PLATFORMS and options of `jax.config` that JAX reads at the first use of a device.
Not here: the same at run time (`topology.devices`), a flag that XLA does not know (`doctor.environment.flags`).
Invariant: a line is named only if it comes after the use in the order the statements run: those of the module, then
`task` and `build`, each with the functions of the file that it calls. A function is read by itself too.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable

from paceline.doctor.finding import Finding, Level
from paceline.doctor.source.project import Function, SourceFile

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
_CALLED_LATER = ("task", "build")
"""Functions that Paceline calls once the module has run."""
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def late_settings(file: SourceFile) -> list[Finding]:
    """One finding for each setting that comes too late, in the order of lines."""
    walk = _Walk(file)
    used = walk.children(file.tree, None)
    later = [file.exported(name) for name in _CALLED_LATER]
    for function in later:
        walk.body(function, used)
    for function in (node for node in ast.walk(file.tree) if isinstance(node, _FUNCTIONS)):
        walk.body(function, None)
    return sorted(walk.found.values(), key=lambda finding: finding.line or 0)


class _Walk:
    """The statements of a file as they run, and the settings that were too late.

    Attribute `found`: by the node that sets something.
    """

    def __init__(self, file: SourceFile) -> None:
        self.file = file
        self.found: dict[ast.AST, Finding] = {}
        self._after_use: set[Function] = set()
        self._first_use: dict[Function, Use | None] = {}

    def body(self, function: Function | None, used: Use | None) -> Use | None:
        """The first use of a device up to the end of a function; each is walked once before a use and once after."""
        if function is None or _is_generator(function):
            return used
        block = ast.Module(function.body, []) if not isinstance(function, ast.Lambda) else ast.Expr(function.body)
        if used is not None:
            if function not in self._after_use:
                self._after_use.add(function)
                self.children(block, used)
            return used
        if function not in self._first_use:
            self._first_use[function] = None  # one that calls itself
            self._first_use[function] = self.children(block, None)
        return self._first_use[function]

    def children(self, node: ast.AST, used: Use | None) -> Use | None:
        """What a node holds as it runs, but no bodies of functions, which run at another time."""
        for child in ast.iter_child_nodes(node):
            if isinstance(child, _FUNCTIONS):
                for value in (*child.decorator_list, *child.args.defaults, *filter(None, child.args.kw_defaults)):
                    used = self._visit(value, used)
            elif not isinstance(child, ast.Lambda | ast.ClassDef):
                used = self._visit(child, used)
        return used

    def _visit(self, node: ast.AST, used: Use | None) -> Use | None:
        """The first use of a device up to the end of a node. Of the branches of an ``if`` only one runs."""
        if isinstance(node, ast.If):
            used = self._visit(node.test, used)
            branches = (node.body, node.orelse)
            ends = [(branch, self.children(ast.Module(branch, []), used)) for branch in branches]
            if "__name__" in ast.unparse(node.test):  # of a script, which Paceline does not run
                return used
            return next((end for branch, end in ends if end is not None and not _leaves(branch)), used)
        used = self.children(node, used)
        name = _setting(self.file, node)
        if name is not None and used is not None and node not in self.file.guarded:
            self.found.setdefault(node, _late(self.file, node, name, used=used))
        return self._call(node, used) if isinstance(node, ast.Call) else used

    def _call(self, call: ast.Call, used: Use | None) -> Use | None:
        function = self.file.function(call.func)
        inside = self.body(function, used)
        if used is not None:
            return used
        if inside is not None:
            return call.lineno, f"{ast.unparse(call.func)}() with {inside[1].rpartition(' ')[2]}"
        use = _use(self.file, call)
        return None if use is None else (call.lineno, use)


def _leaves(branch: list[ast.stmt]) -> bool:
    """Whether what follows the ``if`` does not run after this branch."""
    return bool(branch) and isinstance(branch[-1], ast.Return | ast.Raise | ast.Continue | ast.Break)


def _is_generator(function: Function) -> bool:
    """Whether a call runs nothing of the body yet."""
    yields = any(isinstance(node, ast.Yield | ast.YieldFrom) for node in ast.walk(function))
    return yields or isinstance(function, ast.AsyncFunctionDef)


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
        if isinstance(node, ast.AugAssign) and file.dotted(node.target) == "os.environ":  # |=
            return _first(_keys(file, node.value))
        return _first(key for target in targets if (key := _key(file, target)) is not None)
    if isinstance(node, ast.Call):
        called, first = file.dotted(node.func), file.literal(node.args[0]) if node.args else None
        if called == "os.environ.setdefault" or called == "os.putenv":
            return str(first) if first in _VARIABLES else None
        if called == "os.environ.update":
            given = {keyword.arg for keyword in node.keywords if keyword.arg}
            return _first(given.union(*(_keys(file, argument) for argument in node.args)))
        if called == "jax.config.update" and first in _OPTIONS:
            return str(first)
    return None


def _keys(file: SourceFile, node: ast.expr) -> set[str]:
    """The keys of a mapping that is written out, whatever its values are."""
    value = file.value(node)
    if isinstance(value, ast.Dict):
        return {str(file.literal(key)) for key in value.keys if key is not None}
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "dict":
        return {keyword.arg for keyword in value.keywords if keyword.arg}
    return set()


def _first(names: Iterable[str]) -> str | None:
    """Of the variables among some names the one that matters most."""
    known = sorted((name for name in names if name in _VARIABLES), key=lambda name: (name != "XLA_FLAGS", name))
    return known[0] if known else None


def _key(file: SourceFile, target: ast.expr) -> str | None:
    if not isinstance(target, ast.Subscript) or file.dotted(target.value) != "os.environ":
        return None
    key = file.literal(target.slice)
    return str(key) if key in _VARIABLES else None
