"""JAX names that are gone or going, with what to write instead: the table.

Owns: which names of JAX 0.4 are missing (``removed``) or warn (``deprecated``) in JAX 0.10 to 0.12.
Not here: finding them in a file (`removed`).
Invariant: a test compares every entry with the installed JAX.
"""

from __future__ import annotations

from dataclasses import dataclass

_JIT = "jax.jit with in_shardings= and out_shardings="
_CALLBACK = "jax.pure_callback, jax.experimental.io_callback or jax.debug.callback"
_AT = "x.at[index].set(value), .add, .min, .max"


@dataclass(frozen=True)
class Change:
    """What became of a name.

    Args:
      replacement: the code to write instead.
      removed: False while the name still works with a warning.
      to_shard_map: the replacement ports code to `jax.shard_map`, so that its gradients need a second look.
    """

    replacement: str
    removed: bool = True
    to_shard_map: bool = False


_TREE = {
    f"jax.{old}": Change(f"jax.{new}")
    for old, new in {
        "tree_map": "tree.map",
        "tree_multimap": "tree.map",
        "tree_util.tree_multimap": "tree.map",
        "tree_leaves": "tree.leaves",
        "tree_flatten": "tree.flatten",
        "tree_unflatten": "tree.unflatten",
        "tree_structure": "tree.structure",
        "tree_reduce": "tree.reduce",
        "tree_transpose": "tree.transpose",
    }.items()
}

_MOVED_TO_EXTEND = {
    f"jax.core.{name}": Change(f"jax.extend.core.{name}")
    for name in ("Primitive", "Jaxpr", "ClosedJaxpr", "JaxprEqn", "Var", "jaxpr_as_fun")
}

CHANGES: dict[str, Change] = {
    "jax.device_put_replicated": Change(
        "jax.device_put(x, jax.NamedSharding(mesh, jax.P())) for jit and shard_map; for jax.pmap stack K copies along "
        "a new first dim: jax.tree.map(lambda leaf: jnp.stack([leaf] * K), x)"
    ),
    "jax.device_put_sharded": Change(
        'jax.device_put(np.concatenate(shards), jax.NamedSharding(mesh, jax.P("data"))) for jit and shard_map; for '
        "jax.pmap np.stack(shards), whose first dim is the device axis"
    ),
    "jax.experimental.shard_map.shard_map": Change(
        "jax.shard_map(f, mesh=mesh, in_specs=..., out_specs=...), keywords only", removed=False, to_shard_map=True
    ),
    "jax.experimental.maps.Mesh": Change("jax.sharding.Mesh"),
    "jax.experimental.maps": Change("jax.shard_map over a jax.sharding.Mesh", to_shard_map=True),
    "jax.experimental.pjit.pjit": Change(_JIT, removed=False),
    "jax.experimental.pjit.with_sharding_constraint": Change("jax.lax.with_sharding_constraint"),
    "jax.experimental.pjit.PartitionSpec": Change("jax.sharding.PartitionSpec"),
    "jax.experimental.PartitionSpec": Change("jax.sharding.PartitionSpec"),
    "jax.experimental.global_device_array": Change("jax.make_array_from_callback and jax.Array"),
    "jax.experimental.host_callback": Change(_CALLBACK),
    "jax.experimental.enable_x64": Change("jax.enable_x64(True)"),
    "jax.experimental.disable_x64": Change("jax.enable_x64(False)"),
    "jax.experimental.optimizers": Change("optax, or jax.example_libraries.optimizers"),
    "jax.experimental.stax": Change("flax, or jax.example_libraries.stax"),
    "jax.experimental.export": Change("jax.export"),
    "jax.interpreters.sharded_jit": Change(_JIT),
    "jax.interpreters.pxla.thread_resources": Change(
        "jax.set_mesh(mesh), then jax.sharding.get_abstract_mesh()", removed=False
    ),
    "jax.interpreters.pxla.ShardedDeviceArray": Change("jax.Array"),
    "jax.interpreters.pxla.ShardingSpec": Change("jax.sharding.NamedSharding"),
    "jax.interpreters.xla.DeviceArray": Change("jax.Array"),
    "jax.numpy.DeviceArray": Change("jax.Array"),
    "jax.sharding.PmapSharding": Change("jax.NamedSharding(mesh, jax.P(axis_name))"),
    "jax.sharding.PositionalSharding": Change("jax.NamedSharding(mesh, jax.P(...))"),
    "jax.sharding.use_mesh": Change("jax.set_mesh(mesh)"),
    "jax.soft_pmap": Change("jax.vmap inside jax.shard_map", to_shard_map=True),
    "jax.lax.pvary": Change('jax.lax.pcast(x, axis_name, to="varying")'),
    "jax.lax.pdot": Change("jnp.dot, then jax.lax.psum"),
    "jax.lax.xeinsum": Change("jnp.einsum, then jax.lax.psum"),
    "jax.lax.tie_in": Change("the value itself"),
    "jax.core.get_aval": Change("jax.typeof"),
    "jax.core.axis_frame": Change("jax.lax.axis_size(axis_name)"),
    "jax.linear_util": Change("jax.extend.linear_util"),
    "jax.util": Change("itertools and functools of the standard library"),
    "jax.xla_computation": Change("jax.jit(f).lower(...).compiler_ir('hlo')"),
    "jax.abstract_arrays": Change("jax.core.ShapedArray"),
    "jax.ShapedArray": Change("jax.core.ShapedArray"),
    "jax.lib.xla_bridge": Change("jax.devices() and jax.default_backend()"),
    "jax.lib.xla_client": Change("jax.extend and jax.devices()"),
    "jax.lib.xla_extension": Change("jax.errors.JaxRuntimeError and jax.extend"),
    "jax.clear_backends": Change("jax.clear_caches(), or a new process"),
    "jax.random.KeyArray": Change("jax.Array"),
    "jax.random.PRNGKeyArray": Change("jax.Array"),
    "jax.random.shuffle": Change("jax.random.permutation"),
    "jax.ops.index": Change(_AT),
    "jax.ops.index_update": Change(_AT),
    "jax.ops.index_add": Change(_AT),
    "jax.numpy.trapz": Change("jax.numpy.trapezoid"),
    "jax.numpy.in1d": Change("jax.numpy.isin"),
    "jax.numpy.row_stack": Change("jax.numpy.vstack"),
    "jax.numpy.product": Change("jax.numpy.prod"),
    "jax.dlpack.to_dlpack": Change("jax.dlpack.from_dlpack(x) of the receiving library"),
    "jax.config.config": Change("jax.config, with import jax"),
    "jax.host_id": Change("jax.process_index", removed=False),
    "jax.host_ids": Change("range(jax.process_count())", removed=False),
    "jax.host_count": Change("jax.process_count", removed=False),
    "jax.interpreters.pxla.Mesh": Change("jax.sharding.Mesh"),
    "jax.mask": Change("an array that marks the valid rows, with jnp.where"),
    "jax.shapecheck": Change("jax.eval_shape"),
    "jax.partial": Change("functools.partial"),
    **_TREE,
    **_MOVED_TO_EXTEND,
}


ARGUMENTS: dict[str, dict[str, str]] = {
    "jax.numpy.clip": {"a": "the array as the first positional argument", "a_min": "min=", "a_max": "max="},
    "jax.pmap": {"global_arg_shapes": "jax.jit over a mesh of all processes, which needs no shapes"},
}
"""Keyword arguments that a function no longer takes, with what to use instead."""


def change_of(name: str) -> tuple[str, Change] | None:
    """The longest entry that a dotted name is or lies under, with what became of it."""
    parts = name.split(".")
    for end in range(len(parts), 1, -1):
        entry = ".".join(parts[:end])
        if entry in CHANGES:
            return entry, CHANGES[entry]
    return None
