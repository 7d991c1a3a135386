"""Names, and packages that are not there."""

from __future__ import annotations

import sys

import pytest

from paceline.base.errors import OptionError
from paceline.telemetry.exporters.exporter import EXPORTERS, exporter_names, make_exporter
from paceline.telemetry.exporters.wandb import _check_login


def test_names_may_be_repeated_or_stand_between_commas():
    """Each counts once, in the order in which it came."""
    assert exporter_names(["wandb,tensorboard", " mlflow, wandb"]) == ("wandb", "tensorboard", "mlflow")
    assert exporter_names([]) == ()


def test_a_misspelled_name_is_answered_with_the_nearest():
    with pytest.raises(OptionError, match="perhaps 'mlflow'") as refused:
        exporter_names(["ml-flow"])
    assert refused.value.fix == "use one or more of tensorboard, wandb, mlflow"


@pytest.mark.parametrize("name", list(EXPORTERS))
def test_a_missing_package_is_named_with_the_command_that_installs_it(name, tmp_path, monkeypatch):
    """None in `sys.modules` is how Python says that a module is not to be found."""
    for module in [module for module in sys.modules if module.partition(".")[0] == name]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(OptionError, match=f"the package {name} is not installed") as refused:
        make_exporter(name, tmp_path)
    assert refused.value.fix == f"pip install 'paceline[{name}]'"


class Settings:
    """What is read of `wandb.Settings`."""

    def __init__(self, mode=None, api_key=None):
        self.mode = mode
        self.api_key = api_key
        self.base_url = "https://wandb.example"


def test_wandb_without_a_login_is_refused_before_the_run(tmp_path, monkeypatch):
    """Offline needs none; a key may stand in the settings, the environment or ~/.netrc."""
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(OptionError, match=r"nobody is logged in at wandb\.example") as refused:
        _check_login(Settings("online"))
    assert "wandb login" in refused.value.fix and "WANDB_MODE=offline" in refused.value.fix
    for settings in (Settings("offline"), Settings("disabled"), Settings("online", api_key="k")):
        _check_login(settings)
    (tmp_path / "netrc").write_text("machine wandb.example login user password k\n")
    _check_login(Settings("online"))


@pytest.mark.parametrize(
    ("store", "fix"), [("sqlite:///mlflow.db", "paceline[mlflow]"), ("./mlruns", "MLFLOW_ALLOW_FILE_STORE=true")]
)
def test_an_mlflow_store_that_cannot_be_opened_is_refused_before_the_run(tmp_path, monkeypatch, store, fix):
    """The small package has no database driver; newer versions open no folder unless told to."""
    pytest.importorskip("mlflow", reason="the package mlflow is not installed")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(OptionError, match="logging to mlflow") as refused:
        make_exporter("mlflow", tmp_path)
    assert fix in refused.value.fix
