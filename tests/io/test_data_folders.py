"""Tests of the engine's cache and data folders."""

from pathlib import Path

import platformdirs
import pytest

from cml_engine.io import data_folders

KINDS = {
    "CML_CACHE_DIR": (data_folders.cache_folder, platformdirs.user_cache_dir),
    "CML_DATA_DIR": (data_folders.data_folder, platformdirs.user_data_dir),
}


@pytest.fixture(autouse=True)
def _plain(monkeypatch):
    for variable in (*KINDS, "CML_TUNING_DIR"):
        monkeypatch.delenv(variable, raising=False)


@pytest.mark.parametrize("variable", KINDS)
def test_platform_folder_or_environment_variable(variable, monkeypatch, tmp_path):
    folder, of_platform = KINDS[variable]
    own = Path(of_platform("cml_engine", appauthor=False))
    assert folder() == own
    monkeypatch.setenv(variable, "")
    assert folder() == own
    monkeypatch.setenv(variable, str(tmp_path / "named"))
    assert folder() == tmp_path / "named" and not (tmp_path / "named").exists()


def test_files_of_a_device(monkeypatch, tmp_path):
    monkeypatch.setenv("CML_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("CML_DATA_DIR", str(tmp_path / "data"))
    device = "Some GPU/7 (driver 1.2) (Mesa)"
    name = "some-gpu-7-driver-1.2-mesa.json"
    assert data_folders.tuning_file(device) == tmp_path / "cache" / "tuning" / name
    assert data_folders.costs_file(device) == tmp_path / "data" / "costs" / name
    monkeypatch.setenv("CML_TUNING_DIR", "")
    assert data_folders.tuning_file(device) == tmp_path / "cache" / "tuning" / name
    monkeypatch.setenv("CML_TUNING_DIR", str(tmp_path / "tables"))
    assert data_folders.tuning_file(device) == tmp_path / "tables" / name


@pytest.mark.parametrize("device", ["", "(…)", "x" * 1000])
def test_any_name_of_a_device_makes_a_name_of_a_file(device):
    name = data_folders.costs_file(device).name
    assert len(name) < 200 and not name.startswith(".")
