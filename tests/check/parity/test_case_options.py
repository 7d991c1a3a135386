"""What `verify` makes of options that only some schemes have."""

from __future__ import annotations

import pytest

from paceline.check.parity.cases import Case
from paceline.check.parity.subject import case_parallel
from paceline.engine.parallel import Parallel

ASKED = Parallel("per_device", bucket_bytes=1000, noise_scale=True)


@pytest.mark.parametrize(
    "scheme, placement, bucket_bytes",
    [
        ("per_device", "replicated", 1000),
        ("pmap", "replicated", 1000),
        ("per_device", "zero1", None),
        ("global_view", "replicated", None),
    ],
)
def test_buckets_are_verified_where_they_exist_and_the_noise_nowhere(scheme, placement, bucket_bytes):
    """The norm of a device's gradient depends on K, so no one-device run could equal it."""
    found = case_parallel(ASKED, Case(scheme, placement, 2, 1, "float32"))
    assert (found.bucket_bytes, found.noise_scale) == (bucket_bytes, False)
