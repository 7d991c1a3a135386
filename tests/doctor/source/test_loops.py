"""Loops that take replica 0 and replicate it again."""

from __future__ import annotations

import pytest

from tests.doctor.source.reading import HEADER_LINES, only

FED_BACK = {
    "nested": """
        from flax import jax_utils
        def train(state, batches):
            for batch in batches:
                state, _ = p_step(state, batch)
                state = jax_utils.replicate(jax_utils.unreplicate(state))
    """,
    "in two statements": """
        from flax.jax_utils import replicate, unreplicate
        def train(state, batches):
            for batch in batches:
                state, _ = p_step(state, batch)
                single = unreplicate(state)
                single = shrink(single)
                state = replicate(single)
    """,
    "by hand": """
        def train(state, batches):
            while batches:
                state = p_step(state, batches.pop())
                first = jax.tree.map(lambda leaf: leaf[0], state)
                state = jax.tree.map(lambda leaf: jnp.stack([leaf] * 4), first)
    """,
    "through functions of the file": """
        def first(tree):
            return jax.tree.map(lambda leaf: leaf[0], tree)
        def spread(tree):
            return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (4, *leaf.shape)), tree)
        def train(state, batches):
            for batch in batches:
                state = p_step(state, batch)
                single = first(state)
                state = spread(single)
    """,
    "replicated before the step of the next pass": """
        from flax.jax_utils import replicate, unreplicate
        def train(single, batches):
            for batch in batches:
                state = replicate(single)
                single = unreplicate(p_step(state, batch))
    """,
    "through a name that is set in the pass before": """
        from flax.jax_utils import replicate, unreplicate
        def train(single, batches):
            for batch in batches:
                smaller = shrink(single)
                state = replicate(smaller)
                single = unreplicate(p_step(state, batch))
    """,
}


@pytest.mark.parametrize("source", FED_BACK.values(), ids=FED_BACK)
def test_replica_0_that_is_fed_back_is_a_warning(check, source):
    """At the line that replicates; the fix says for what replica 0 may be taken."""
    found = only(check(source))
    lines = source.splitlines()
    at = max(number for number, line in enumerate(lines, 1) if "state = " in line and "p_step" not in line)
    assert found.level == "warning" and "replica 0" in found.what
    assert found.line == HEADER_LINES + at
    assert found.fix is not None and "without feeding it back" in found.fix


FINE = {
    "a checkpoint": """
        from flax import jax_utils
        def train(state, batches):
            state = jax_utils.replicate(state)
            for batch in batches:
                state = p_step(state, batch)
                save(jax_utils.unreplicate(state))
    """,
    "metrics, and a batch that is replicated": """
        from flax import jax_utils
        def train(state, batches):
            for batch in batches:
                state, metrics = p_step(state, jax_utils.replicate(batch))
                print(jax_utils.unreplicate(metrics))
    """,
    "once before and once after": """
        from flax import jax_utils
        def train(state, batches):
            state = jax_utils.replicate(state)
            for batch in batches:
                state = p_step(state, batch)
            return jax_utils.replicate(jax_utils.unreplicate(state))
    """,
    "the first row of a batch": """
        def train(state, batches):
            for batch in batches:
                example = jax.tree.map(lambda leaf: leaf[0], batch)
                many = jax.tree.map(lambda leaf: leaf[1:], example)
    """,
}


@pytest.mark.parametrize("source", FINE.values(), ids=FINE)
def test_replica_0_that_is_only_looked_at_raises_no_alarm(check, source):
    assert not [finding.lines() for finding in check(source)]
