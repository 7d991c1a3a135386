"""`Parallel` accepts what a step can do and refuses the rest with a way out."""

from __future__ import annotations

import dataclasses
import itertools
import re

import pytest

from paceline.base.errors import SchemeError
from paceline.engine.parallel import Parallel

CHOICES = {
    "scheme": ("global_view", "per_device", "pmap"),
    "precision": ("float32", "bfloat16", "float16"),
    "reduce_dtype": ("float32", "bfloat16"),
    "nonfinite": ("stop", "skip"),
    "dropout": ("global", "per_device", "shared"),
    "batch_norm": ("local", "synced"),
    "placement": ("replicated", "zero1", "fsdp"),
}
REFUSED = [
    {"reduce_dtype": "float32"},
    {"reduce_dtype": "bfloat16"},
    {"dropout": "per_device"},
    {"dropout": "shared"},
    {"batch_norm": "local"},
]


@pytest.mark.parametrize("name", CHOICES)
@pytest.mark.parametrize("value", ["nonsense", "", "FLOAT32", 3])
def test_a_value_that_is_no_choice_is_refused_and_the_choices_are_named(name, value):
    """Each of the choices that the fix lists is accepted, at least by a scheme that runs once a device."""
    with pytest.raises(SchemeError) as caught:
        Parallel(**{"scheme": "per_device", name: value})
    assert f"{name}={value!r}" in caught.value.what
    offered = re.findall(r"\w+", caught.value.fix.removeprefix("use one of"))
    assert tuple(offered) == CHOICES[name]
    for choice in offered:
        Parallel(**{"scheme": "per_device", name: choice})


def test_only_what_may_be_left_open_may_be_none():
    """None is a value of `reduce_dtype` and `batch_norm` alone among the choices."""
    for name in CHOICES:
        if name in ("reduce_dtype", "batch_norm"):
            assert getattr(Parallel(**{name: None}), name) is None
        else:
            with pytest.raises(SchemeError, match=name):
                Parallel(**{name: None})


@pytest.mark.parametrize(
    "name, bad, good",
    [
        ("accumulation", (0, -1, 2.0, 2.5), 1),
        ("clip_norm", (0, 0.0, -1.0, float("nan")), 1e-3),
        ("ema_decay", (1, 1.0, -0.1, 1.5, float("nan")), 0.99),
    ],
)
def test_a_number_out_of_range_is_refused_and_the_range_is_named(name, bad, good):
    """Bounds included: 0 microbatches, half a one, a limit of 0, a decay of 1. What the fix names works."""
    for value in bad:
        with pytest.raises(SchemeError) as caught:
            Parallel(**{name: value})
        assert f"{name}={value!r}" in caught.value.what
        assert {"accumulation": "1 or more", "clip_norm": "above 0", "ema_decay": "0.99"}[name] in caught.value.fix
    assert getattr(Parallel(**{name: good}), name) == good
    assert Parallel(ema_decay=0).ema_decay == 0


@pytest.mark.parametrize("options", REFUSED, ids=str)
def test_what_global_view_cannot_do_is_refused_and_both_ways_out_work(options):
    """The fix names `per_device`, which takes the option, and how to stay with `global_view`."""
    ((name, value),) = options.items()
    with pytest.raises(SchemeError) as caught:
        Parallel("global_view", **options)
    assert f"{name}={value!r}" in caught.value.what and "global_view" in caught.value.what
    assert "scheme='per_device'" in caught.value.fix and name in caught.value.fix
    assert getattr(Parallel("per_device", **options), name) == value
    assert getattr(Parallel("pmap", **options), name) == value
    assert Parallel("global_view", dropout="global").scheme == "global_view"


def test_every_other_combination_of_choices_is_accepted():
    """All 1458, None included where it may be; refused: the five above under `global_view`, placements under `pmap`."""
    options = CHOICES | {"reduce_dtype": (None, *CHOICES["reduce_dtype"]), "batch_norm": (None, *CHOICES["batch_norm"])}
    for values in itertools.product(*options.values()):
        fields = dict(zip(options, values, strict=True))
        impossible = fields["scheme"] == "global_view" and any(
            fields[name] == value for refused in REFUSED for name, value in refused.items()
        )
        if impossible or (fields["scheme"] == "pmap" and fields["placement"] != "replicated"):
            with pytest.raises(SchemeError):
                Parallel(**fields)
        else:
            assert dataclasses.asdict(Parallel(**fields)).items() >= fields.items()


def test_batch_norm_is_synced_by_the_task_only_where_a_device_sees_its_rows_alone():
    """`global_view` is synced by nature, so there is nothing to tell the task."""
    assert Parallel("per_device", batch_norm="synced").synced_batch_norm
    assert Parallel("pmap", batch_norm="synced").synced_batch_norm
    assert not Parallel("global_view", batch_norm="synced").synced_batch_norm
    assert (
        not Parallel("per_device").synced_batch_norm
        and not Parallel("per_device", batch_norm="local").synced_batch_norm
    )


def test_a_parallel_cannot_be_changed_behind_its_checks():
    parallel = Parallel()
    with pytest.raises(dataclasses.FrozenInstanceError):
        parallel.accumulation = 0
    with pytest.raises(SchemeError):
        dataclasses.replace(parallel, accumulation=0)
