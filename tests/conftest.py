"""Set-up of all tests: what must be in the environment before torch and fastget are imported."""

import atexit
import os
import shutil
import signal
import tempfile
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
# What computes, and may so depend on the CPU: files and folders whose tests are marked `numeric`.
NUMERIC = [
    "archive",
    "bases",
    "commands/test_eval.py",
    "commands/test_predict.py",
    "common",
    "evaluation",
    "features",
    "kernels",
    "loading",
    "methods",
    "networks",
    "planning",
    "report",
    "selftest",
    "serving",
    "studies",
    "test_reference.py",
    "training",
]

for name in ("COLUMNS", "LINES", "FORCE_COLOR", "NO_COLOR"):  # a width and colours of one's own would cut the words up
    os.environ.pop(name, None)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a shell's background job: Ctrl-C is tested all the same
    signal.signal(signal.SIGINT, signal.default_int_handler)
if "PYTEST_XDIST_WORKER_COUNT" in os.environ:  # workers share the cores, or their threads wait for one another
    share = max(1, (os.cpu_count() or 1) // int(os.environ["PYTEST_XDIST_WORKER_COUNT"]))
    os.environ.setdefault("OMP_NUM_THREADS", str(share))
os.environ.setdefault("TRITON_INTERPRET", "1")  # before triton is imported: its kernels run on CPU tensors
os.environ["XDG_CACHE_HOME"] = cache = tempfile.mkdtemp(prefix="fastget-tests-")  # the digits are made here, once
atexit.register(shutil.rmtree, cache, ignore_errors=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if any(item.path.is_relative_to(HERE / place) for place in NUMERIC):
            item.add_marker(pytest.mark.numeric)


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs are written under the current folder."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="session")
def digits_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a short run on `digits` whose network tells most of them apart. Not to be written to."""
    import fastget

    settings: dict[str, Any] = {"train.max_steps": 70, "train.warmup_steps": 60, "optim.lr": 0.05}
    settings |= {"train.eval_every": 70, "train.checkpoint_every": 35, "train.tensorboard": False}
    folder = tmp_path_factory.mktemp("digits") / "run"
    return fastget.train(fastget.make_config({**settings, "train.out": str(folder)}), quiet=True).folder


@pytest.fixture(scope="session")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stored features of three dozen images a domain, which train in no time. Not to be written to."""
    from tests.commandline import features

    return features(tmp_path_factory.mktemp("features") / "few")


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with images, `data`, and a run on them, `run`. Not to be written to."""
    from tests.commandline import FEW, on_folders, say
    from tests.pictures import write_domains

    folder = tmp_path_factory.mktemp("images")
    done = say(*on_folders(write_domains(folder / "data", per_class=4), *FEW, out=str(folder / "run")))
    assert done.code == 0, done.words
    return folder
