"""Means of the stretches that a thinned curve is made of.

Owns: sums that cannot overflow, adding up spans or rows by bucket.
Not here: extremes, and how many rows a bucket has (`follow.spans`); steps and times (`follow.columns`).
Invariant: every finite number of a bucket counts in its mean once, whichever rows were chosen for the picture.

Shapes: ``[R]`` rows, or spans of rows; ``[O]`` rows whose number is not finite; ``[B]`` buckets that have a number.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

# Sums are kept times 2**-32: 2**32 numbers of any size add up without overflow, and the factor itself is exact.
_SCALE = 2.0**-32


class Buckets(NamedTuple):
    """What is known of each bucket, in order.

    Args:
      bucket: ``[B]`` its number: row divided by the rows of a bucket.
      mean: ``[B]`` of its finite numbers; NaN if it has none.
      finite: ``[B]`` how many finite numbers it has.
      not_finite: ``[B]`` how many others.
    """

    bucket: np.ndarray
    mean: np.ndarray
    finite: np.ndarray
    not_finite: np.ndarray


def scaled_sums(values: np.ndarray) -> np.ndarray:
    """Sums over the last axis of finite numbers, times 2**-32."""
    return (values * _SCALE).sum(axis=-1)


def buckets_of(
    rows: np.ndarray, sums: np.ndarray, *, counts: np.ndarray, odd_rows: np.ndarray, bucket_rows: int
) -> Buckets:
    """Adds up by bucket.

    Args:
      rows: ``[R]`` in order.
      sums: ``[R]`` of finite numbers, as `scaled_sums` gives them.
      counts: ``[R]`` how many finite numbers each sum has.
      odd_rows: ``[O]`` rows whose number is recorded and not finite.
    """
    bucket, odd_bucket = rows // bucket_rows, odd_rows // bucket_rows
    first = int(bucket[0])
    size = int(bucket[-1]) - first + 1
    total = np.bincount(bucket - first, weights=sums, minlength=size)
    count = np.bincount(bucket - first, weights=counts, minlength=size).astype(np.int64)
    not_finite = np.bincount(odd_bucket - first, minlength=size)
    there = np.flatnonzero(count + not_finite)
    with np.errstate(invalid="ignore"):
        mean = total[there] / count[there] / _SCALE
    return Buckets(there + first, mean, count[there], not_finite[there])
