"""Set-up of all tests: what must be in the environment before torch and fastget are imported, and the three rings."""

import atexit
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from importlib import import_module
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

# Rings: `make test` runs the first, `make test-all` the second too, `make test-slow` the third. Here alone it is said
# which test is where. A line names a folder, a file, a test, or those of its cases that have a word in their brackets.
# What no line names is in the first ring, and fails there if it takes too long.
SECOND: list[str] = []
LIMIT = 3.0  # CPU-seconds that a test of the first ring may take, with those of the processes that it waits for
UNLIMITED = "FASTGET_TESTS_UNLIMITED"  # set: no test fails for its time

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


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rings", default="", help="only the tests of these rings: 1, 12, 2, 3; default: all that are named"
    )


def ring_of(item: pytest.Item) -> int:
    """By the tables above; a mark in a test's file is for what needs a GPU alone."""
    if item.get_closest_marker("slow"):
        return 3
    return 2 if any(is_named(item, line) for line in SECOND) else 1


def is_named(item: pytest.Item, line: str) -> bool:
    """Whether a line of a table names a test."""
    place, _, word = line.partition("[")
    name, _, case = item.nodeid.removeprefix("tests/").partition("[")
    return (f"{name}::".startswith(f"{place}::") or name.startswith(f"{place}/")) and word.rstrip("]") in case


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if any(item.path.is_relative_to(HERE / place) for place in NUMERIC):
            item.add_marker(pytest.mark.numeric)
    if rings := config.getoption("rings"):
        chosen = [item for item in items if str(ring_of(item)) in rings and not item.get_closest_marker("gpu")]
        config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
        items[:] = chosen


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """A test of the first ring that takes too long fails by its name. It is the CPU's time: what runs beside is no part
    of it."""
    before = sum(os.times()[:4])
    yield
    took = sum(os.times()[:4]) - before
    if item.config.getoption("rings") == "1" and took > LIMIT and UNLIMITED not in os.environ:
        pytest.fail(
            f"{item.nodeid} takes {took:.1f} CPU-seconds, and a test of the first ring {LIMIT:g} at most: make it "
            f"faster, or name it in SECOND of tests/conftest.py ({UNLIMITED}=1 lets it pass)",
            pytrace=False,
        )


@pytest.fixture(scope="session", autouse=True)
def warm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> None:
    """What the first test of a session would pay for all that come after it: imports, the digits, a first step."""
    if "1" in request.config.getoption("rings"):
        for name in ("matplotlib.pyplot", "sklearn.manifold", "torch.utils.tensorboard", "torch._dynamo", "timm"):
            import_module(name)
        from fastget.training.train import train
        from tests.support import tiny

        out = tmp_path_factory.mktemp("warm") / "run"
        train(tiny(out, train__max_steps=2, train__warmup_steps=1, train__tensorboard=True), quiet=True)


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
