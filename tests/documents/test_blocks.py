"""Every block of code and every command of the documentation is run, or says why it is not."""

import itertools
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from fastget import methods
from fastget.commands import train
from fastget.commands.main import COMMANDS, build_parser
from fastget.config import make_config
from tests.documents.blocks import BLOCKS, ROOT, Block, blocks_of, fastget_words, wrong
from tests.documents.commands import Place, cut, is_slow
from tests.studies.reproduce.support import in_this_process

LINES = [(block, words) for block in BLOCKS for command in block.commands if (words := fastget_words(command))]
PAGES = sorted({block.page for block in BLOCKS if block.reason is None and block.language != "text"})
REPEATS = ("docs/methods/", "docs/bases/")  # every method on every base is trained elsewhere: one command a page here

# Of README.md's loop: what it takes for granted.
README = """
import torch
import torch.nn.functional as F
backbone, bottleneck, classifier = torch.nn.Flatten(), torch.nn.Linear(12, 256), torch.nn.Linear(256, 65)
target_batches, epochs = list(torch.rand(2, 36, 3, 2, 2)), 2
with torch.no_grad():
    features = bottleneck(backbone(torch.rand(130, 3, 2, 2)))
predictions, source_means = torch.arange(130) % 65, torch.rand(65, 256)
source_loss = torch.zeros(())
optimizer = torch.optim.SGD([*bottleneck.parameters(), *classifier.parameters()], lr=0.01)
"""


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shelf")


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A method that a page registers."""
    monkeypatch.setattr(methods, "_ENTRIES", dict(methods._ENTRIES))
    loaded = set(sys.modules)
    yield
    for name in set(sys.modules) - loaded:
        if name.startswith("fastget_methods_of"):
            del sys.modules[name]


@pytest.fixture
def place(shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """Where a page's commands run. Studies run their jobs in this process; a page's settings of torch are undone."""
    in_this_process(monkeypatch)
    threads, generator = torch.get_num_threads(), torch.get_rng_state()
    yield Place(tmp_path, shelf)
    torch.set_num_threads(threads)
    torch.set_rng_state(generator)


def run_page(page: str, place: Place, slow: bool) -> tuple[dict[str, Any], int]:
    """A page's blocks in order: the names that its Python left, and how many commands were left to the slow test."""
    names: dict[str, Any] = {"__name__": "__main__"}
    examples = {block.file: block.text for block in BLOCKS if block.page == page and block.file is not None}
    if page == "README.md":
        exec(compile(README, "what README.md takes for granted", "exec"), names)
    left = 0
    for block in BLOCKS:
        if block.page != page or block.reason is not None:
            continue
        if block.language == "python" and block.file is None:
            exec(compile("\n" * block.line + block.text, ROOT / page, "exec"), names)
        commands = [words for words in block.commands if words[0] not in block.left_out]
        now = commands if slow else cheap(commands, page)
        left += len(commands) - len(now)
        if now:
            place.furnish(f"line {block.line}", examples)
        for words in now:
            code = place.run(words)
            assert code == 0, f"{block.name}: `{' '.join(words)}` ended with exit code {code}"
    return names, left


def cheap(commands: list[list[str]], page: str) -> list[list[str]]:
    """A block's commands up to the first slow one, on whose work the next ones may build."""
    now = list(itertools.takewhile(lambda words: not is_slow(words), commands))
    return now[:1] if page.startswith(REPEATS) else now


def runs_later(page: str) -> bool:
    """Whether some of a page's commands are left to the slow test."""
    found = [block for block in BLOCKS if block.page == page and block.reason is None]
    lists = [[words for words in block.commands if words[0] not in block.left_out] for block in found]
    return any(len(cheap(commands, page)) < len(commands) for commands in lists)


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.name)
def test_a_block_is_run_or_says_why_not(block: Block) -> None:
    assert wrong(block) is None


@pytest.mark.parametrize("page", PAGES)
def test_a_page_runs(page: str, place: Place) -> None:
    names, _ = run_page(page, place, slow=False)
    if page == "docs/loop.md":  # both programs adapt
        assert names["after"] > names["before"] + 0.1
        assert names["accuracy"](names["adapting"].network) > names["before"] + 0.1
    if page == "docs/kernels.md":
        assert len(names["launches_of"](36, 65, 256)) == 6


@pytest.mark.parametrize("page", [page for page in PAGES if runs_later(page)])
def test_all_of_a_page_runs(page: str, place: Place) -> None:
    _, left = run_page(page, place, slow=True)
    assert left == 0


@pytest.mark.parametrize(("block", "words"), LINES, ids=[f"{block.name}: {' '.join(words)}" for block, words in LINES])
def test_a_command_is_understood_as_it_is_written(block: Block, words: list[str], tmp_path: Path) -> None:
    """Also where it is not run, and with its own values where it is run with others."""
    for other in BLOCKS:
        if other.page == block.page and other.file is not None:
            (tmp_path / other.file).write_text(other.text)
    words = [word.removesuffix("...") for word in words if word not in ("...", "[RUN...]")]
    words, _ = cut(words, ">")
    assert words[0] in COMMANDS
    if "--help" in words:
        return
    args = build_parser(words[0]).parse_args(words)
    if args.run is train.run:
        make_config(train.settings_of(args), file=args.config)


def test_what_would_be_refused() -> None:
    def first(text: str) -> str | None:
        return wrong(blocks_of(text, "page.md")[0])

    assert first("```\nfastget train\n```\n") is None
    assert first("```python\n1\n```\n") is None
    assert first("<!-- not run: needs a GPU -->\n```\nsrun train\n```\n") is None
    assert first("<!-- not run (pip): needs the network -->\n```\npip install x\nfastget doctor\n```\n") is None
    told = {
        "```\npip install x\n```\n": "nobody runs pip",
        "<!-- not run -->\n```\npip install x\n```\n": "not of the form",
        "<!-- not run: -->\n```\npip install x\n```\n": "not of the form",
        "<!-- not run (make): later -->\n```\nfastget doctor\n```\n": "no line begins with make",
        "<!-- not run (make): later -->\n```\npip install\nmake\n```\n": "nobody runs pip",
        "```yaml\na: 1\n```\n": "nobody runs a block of 'yaml'",
    }
    for text, reason in told.items():
        assert reason in (first(text) or ""), text


def test_no_block_is_overlooked() -> None:
    """A fence that the walk does not see would be neither run nor excused."""
    for page in {block.page for block in BLOCKS}:
        text = (ROOT / page).read_text(encoding="utf-8")
        assert 2 * len(blocks_of(text, page)) == len(re.findall(r"^\s*```", text, re.MULTILINE)), page
