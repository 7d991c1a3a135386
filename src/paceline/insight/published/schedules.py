"""From a table of layers to a timeline: what frameworks of the published runs schedule.

Owns: data parallelism with buckets, a parameter server behind a barrier, fully sharded parameters.
Not here: what a transfer costs (`published.transports`), which run used which (`published.cases`).
Invariant: every schedule does the same arithmetic, forward once and backward twice a row; only communication differs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from paceline.insight.published.layers import Layer
from paceline.insight.timeline import Collective, Done, Event, Kind, Repeat, Start, Timeline, Work

# Fused or not, a message below this is not worth its latency; the frameworks here fuse what is ready.
BUCKET_BYTES = 4e6


def data_parallel(layers: Sequence[Layer], *, rows: int, group: int, dtype: str = "float32") -> Timeline:
    """All-reduces in the order in which backward makes gradients; all are waited for before the update.

    Source: arXiv 1706.02677, section 4, "Subgroups of gradients"; Horovod, arXiv 1802.05799, section 5 (tensor fusion).
    """
    return tuple(_buckets(layers, rows=rows, group=group, dtype=dtype, kind="all-reduce"))


def after_backward(layers: Sequence[Layer], *, rows: int, group: int, dtype: str = "float32") -> Timeline:
    """The same messages, but each waits for all of backward.

    TensorFlow 1's NCCL operations wait for everything that the host has queued on the compute stream when they are
    queued themselves (contrib/nccl/kernels/nccl_manager.cc, `RunCollective`: the stream waits for the whole stream of
    the tensor, not for an event). The host queues kernels far ahead of a device whose kernels are long.
    """
    events = data_parallel(layers, rows=rows, group=group, dtype=dtype)
    work = [event for event in events if isinstance(event, Work)]
    return (*work[:-1], *(event for event in events if not isinstance(event, Work)), work[-1])


def behind_barrier(layers: Sequence[Layer], *, rows: int, group: int, dtype: str = "float32") -> Timeline:
    """Gradients are pushed while backward runs; when all have been, every parameter is pulled, and nothing computes.

    Source: TensorFlow, "High-performance models" (2017), `distributed_replicated` with a cross-replica barrier.
    """
    size = int(4 * sum(layer.parameters for layer in layers))
    pull = _message("pull", "all-gather", size, dtype=dtype, group=group)
    pushes = _buckets(layers, rows=rows, group=group, dtype=dtype, kind="reduce-scatter")
    return (*pushes, Start(pull), Done(pull.name), _update(layers))


def fully_sharded(layers: Sequence[Layer], *, rows: int, microbatches: int, group: int, wire_bytes: int) -> Timeline:
    """Each layer's parameters are gathered one layer ahead of use, forward and backward; its gradients are scattered.

    Every microbatch does all of it (FSDP reduces at each backward unless told not to).
    Args:
      wire_bytes: of an element in gathers; gradients are scattered in the same type.
    Source: arXiv 2304.11277, sections 3.3 and 4: prefetch of one unit, both directions.
    """
    body = (*_gathered(layers, rows=rows, group=group, wire_bytes=wire_bytes, backward=False),)
    body += (*_gathered(layers, rows=rows, group=group, wire_bytes=wire_bytes, backward=True),)
    shard = _update(layers, parts=group)
    return (Repeat(microbatches, body), shard) if microbatches > 1 else (*body, shard)


def _forward(layer: Layer, rows: int, dtype: str) -> Work:
    return Work({dtype: rows * layer.forward_flops}, 0.0, 1, layer.name)


def _backward(layer: Layer, rows: int, dtype: str) -> Work:
    return Work({dtype: 2 * rows * layer.forward_flops}, 0.0, 2, layer.name)


def _update(layers: Sequence[Layer], *, parts: int = 1) -> Work:
    """The optimizer: parameters, gradients and one or two moments read, most of them written; 16 bytes each."""
    return Work({}, 16 * sum(layer.parameters for layer in layers) / parts, 1, "update")


def _message(name: str, kind: Kind, size: int, *, dtype: str, group: int) -> Collective:
    return Collective(name, kind, size, dtype, group, asynchronous=True)


def _buckets(layers: Sequence[Layer], *, rows: int, group: int, dtype: str, kind: Kind) -> Iterator[Event]:
    yield from (_forward(layer, rows, dtype) for layer in layers)
    waiting, names = 0.0, []
    for layer in reversed(layers):
        yield _backward(layer, rows, dtype)
        waiting += 4 * layer.parameters
        if waiting >= BUCKET_BYTES or (layer is layers[0] and waiting):
            names.append(f"{layer.name} and behind")
            yield Start(_message(names[-1], kind, int(waiting), dtype=dtype, group=group))
            waiting = 0.0
    yield from (Done(name) for name in names)
    if kind == "all-reduce":
        yield _update(layers)


def _gathered(layers: Sequence[Layer], *, rows: int, group: int, wire_bytes: int, backward: bool) -> Iterator[Event]:
    """One direction: gather the next layer, compute this one, scatter what it made."""
    order = list(reversed(layers)) if backward else list(layers)
    way = "backward" if backward else "forward"
    sent = [index for index, layer in enumerate(order) if layer.parameters]
    gathers = {
        index: _message(
            f"{way} gather {index}",
            "all-gather",
            int(wire_bytes * order[index].parameters),
            dtype="bfloat16",
            group=group,
        )
        for index in sent
    }
    scatters: list[str] = []
    if 0 in gathers:
        yield Start(gathers[0])
    for index, layer in enumerate(order):
        if index in gathers:
            yield Done(gathers[index].name)
        if index + 1 in gathers:
            yield Start(gathers[index + 1])
        yield (_backward if backward else _forward)(layer, rows, "bfloat16")
        if backward and layer.parameters:
            name = f"scatter {index}"
            size = int(wire_bytes * layer.parameters)
            yield Start(_message(name, "reduce-scatter", size, dtype="bfloat16", group=group))
            scatters.append(name)
    yield from (Done(name) for name in scatters)
