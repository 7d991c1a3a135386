"""What a program can have of a GPU."""

from __future__ import annotations

import pytest

from paceline.insight.memory.limits import program_limit


def test_jax_gives_programs_three_quarters_unless_told_otherwise():
    """Of 80 GB 60; at most all but 1.5 GB, as a fraction in hundredths: 0.98."""
    limit = program_limit(80_000_000_000, environment={})
    assert limit.default_bytes == 60_000_000_000
    assert limit.largest_share == 0.98 and limit.most_bytes == 78_400_000_000


@pytest.mark.parametrize("name", ["XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION"])
def test_the_environment_sets_the_pool(name):
    """0.9 under either name; what is no fraction is JAX's to refuse; 1.0 leaves no room for the runtime."""
    assert program_limit(80_000_000_000, environment={name: ".9"}).default_bytes == 72_000_000_000
    assert program_limit(80_000_000_000, environment={name: "much"}).default_bytes == 60_000_000_000
    assert program_limit(80_000_000_000, environment={name: "1.0"}).default_bytes == 78_400_000_000


def test_a_device_smaller_than_the_runtime_has_nothing_to_give():
    """1 GB: no room at all, not a negative one."""
    assert program_limit(1_000_000_000, environment={}).most_bytes == 0
