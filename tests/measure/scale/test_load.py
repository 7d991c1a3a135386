"""How much of the cores others used."""

from __future__ import annotations

import os

import pytest

from paceline.measure.scale.load import OtherLoad


@pytest.fixture
def system(tmp_path):
    """`system(busy, own)`: clock ticks of core 1, and of this process, whose name has a bracket; core 0 is not ours."""
    (tmp_path / str(os.getpid())).mkdir()

    def say(*, busy, idle, own):
        stat = f"cpu 9 9 9 9 9 9 9 9 0 0\ncpu0 900 0 0 0 0 0 0 0 0 0\ncpu1 {busy} 0 0 {idle} 0 0 0 0 0 0\nintr 5\n"
        (tmp_path / "stat").write_text(stat)
        fields = ["S", *["0"] * 10, str(own), "0"]
        (tmp_path / str(os.getpid()) / "stat").write_text(f"7 (a ) b) {' '.join(fields)}\n")
        return str(tmp_path)

    return say


@pytest.mark.parametrize(
    ("busy", "idle", "own", "share"), [(60, 40, 60, 0.0), (60, 40, 10, 0.5), (100, 0, 55, 0.45), (10, 90, 20, 0.0)]
)
def test_what_others_used_is_busy_time_less_our_own(system, busy, idle, own, share):
    """Of 100 ticks of one core; never below nothing, though ticks are coarse."""
    load = OtherLoad([1], [], root=system(busy=1000, idle=1000, own=500))
    system(busy=1000 + busy, idle=1000 + idle, own=500 + own)
    assert load.share() == pytest.approx(share)


def test_where_nothing_can_be_read_the_share_is_unknown(tmp_path):
    """Another system, or a process that is gone."""
    assert OtherLoad([0], [], root=str(tmp_path)).share() is None


def test_no_time_passed_is_unknown(system):
    """Not zero, which would read as an idle machine."""
    assert OtherLoad([1], [], root=system(busy=1, idle=1, own=1)).share() is None
