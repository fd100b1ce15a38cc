"""What the tests of this folder share. Not to be written to."""

from pathlib import Path

import pytest

from tests.pictures import write_domains
from tests.silent.support import FEW, features, on_folders, say


@pytest.fixture(scope="session")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stored features of three dozen images a domain, which train in no time."""
    return features(tmp_path_factory.mktemp("features") / "few")


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with images, `data`, and a run on them, `run`."""
    folder = tmp_path_factory.mktemp("images")
    done = say(*on_folders(write_domains(folder / "data", per_class=4), *FEW, out=str(folder / "run")))
    assert done.code == 0, done.words
    return folder
