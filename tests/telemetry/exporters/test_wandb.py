"""What is left of wandb when its process was killed: nothing that speaks at the end of Python."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from paceline.telemetry.exporters.wandb import WeightsAndBiases


class Package:
    """Stands for `wandb`: a run whose `finish` raises, and a `teardown` that ends Python, as its own may."""

    def __init__(self, error):
        self.torn_down = 0
        run = SimpleNamespace(offline=True, url=None, dir="/somewhere/files", define_metric=lambda *_, **__: None)
        run.finish = lambda exit_code: self.fail(error)
        self.init = lambda **_: run
        self.Settings = SimpleNamespace

    def fail(self, error):
        raise error

    def teardown(self):
        self.torn_down += 1
        raise SystemExit(9)


@pytest.mark.parametrize(("error", "torn_down"), [(ConnectionResetError("lost"), 1), (ValueError("no"), 0)])
def test_a_killed_process_of_wandb_is_not_asked_again_at_the_end(tmp_path, error, torn_down):
    """The error goes on to whoever gave the exporter up; a live process, which the user's run may share, stays."""
    package = Package(error)
    exporter = WeightsAndBiases(package, tmp_path, kept={}, live=False)
    exporter.begin({})
    with pytest.raises(type(error)):
        exporter.close()
    exporter.close()
    assert package.torn_down == torn_down
