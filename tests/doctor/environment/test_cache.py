"""The folder of compiled programs."""

from __future__ import annotations

import os

import pytest

from paceline.doctor.environment.cache import cache_findings
from tests.doctor.environment.machines import GIB, machine, only


def test_without_a_folder_the_option_is_named(tmp_path):
    for folder in (None, ""):
        assert "--compilation-cache FOLDER" in only(cache_findings(machine(tmp_path), folder), "ok").what


def test_a_folder_is_told_with_its_size(tmp_path):
    """Two programs of 1,500 bytes together; one that is not there yet can be made."""
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache/a").write_bytes(b"x" * 1000)
    (tmp_path / "cache/b").write_bytes(b"x" * 500)
    found = only(cache_findings(machine(tmp_path), str(tmp_path / "cache")), "ok")
    assert found.what.endswith("cache: 2 files, 1.5 kB")
    found = only(cache_findings(machine(tmp_path), str(tmp_path / "new/deep")), "ok")
    assert found.what.endswith("not there yet") and not (tmp_path / "new").exists()


def test_a_network_file_system_is_told(tmp_path):
    mounts = {"/proc/mounts": f"filer:/x {tmp_path} nfs4 rw 0 0\n"}
    found = only(cache_findings(machine(tmp_path, files=mounts), str(tmp_path / "cache")), "ok")
    assert "on a network file system (nfs4)" in found.what


def test_a_full_disk_is_a_warning(tmp_path):
    system = machine(tmp_path, space=lambda path: (GIB, 1000))
    assert "remove old programs" in (only(cache_findings(system, str(tmp_path)), "warning").fix or "")


def test_a_file_in_its_place_is_an_error(tmp_path):
    (tmp_path / "cache").touch()
    found = only(cache_findings(machine(tmp_path), str(tmp_path / "cache")))
    assert "cannot be written" in found.what and found.fix == "choose a folder that you can write to"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_of_somebody_else_is_an_error(tmp_path):
    tmp_path.chmod(0o500)
    assert "cannot be written" in only(cache_findings(machine(tmp_path), str(tmp_path))).what


def test_remote_storage_is_not_tried(tmp_path):
    assert "was not tried" in only(cache_findings(machine(tmp_path), "gs://bucket/cache"), "ok").what
