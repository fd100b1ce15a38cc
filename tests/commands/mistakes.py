"""Mistakes that people make, and what fastget says to each: a sentence and exit code 1 or 2, never a traceback.

python -m tests.commands.mistakes        # writes docs/errors.md of what is really said; test_mistakes.py compares
"""

from __future__ import annotations

import contextlib
import difflib
import io
import os
import re
import shlex
import sys
import tempfile
import textwrap
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch

import fastget
from fastget.commands.main import main
from fastget.common.lock import held
from tests.documents.blocks import ROOT
from tests.pictures import write_domains

FOLDER = "--data folder --root data --source photo --target sketch"
TINY = "network.name=small network.weights=none data.resize=24 data.crop=20 train.max_steps=2 train.warmup_steps=1"


@dataclass(frozen=True)
class Mistake:
    """A command, as it is typed in a folder that `prepare` made, and what is wrong with it."""

    what: str
    command: str
    says: str  # a part of the answer that a person needs
    code: int = 2


MISTAKES = [
    # words
    Mistake("no command", "", "arguments are required: COMMAND"),
    Mistake("a misspelt command", "trian", "did you mean 'train'"),
    Mistake("a misspelt option", "train --sorce photo", "did you mean '--source'"),
    Mistake("a field as an option", "train --get.tau 0.2", "--set get.tau=VALUE"),
    Mistake("an option without its value", "train --root", "expected one argument"),
    Mistake("help of no section", "train --help gett", "did you mean 'get'"),
    # settings
    Mistake("a misspelt field", "train --set get.tua=0.2", "did you mean 'get.tau'"),
    Mistake("a field without its section", "train --set tau=0.2", "did you mean 'get.tau'"),
    Mistake("a field without a value", "train --set get.tau", "takes section.field=value"),
    Mistake("a word for a number", "train --set optim.lr=fast", "optim.lr must be a number"),
    Mistake("a batch of nothing", "train --set train.batch_size=0", "train.batch_size must be at least 1"),
    Mistake("a negative learning rate", "train --set optim.lr=-1", "optim.lr must be above 0"),
    Mistake("one seed twice", "train --seeds 1,1", "different seeds"),
    Mistake("an unknown method", "train --method gte", "did you mean 'get'"),
    Mistake("an unknown base model", "train --base cdna", "did you mean 'cdan'"),
    Mistake("mme without labels in the target", "train --method mme", "ssda"),
    Mistake("a setting of another method", "train --method mcc --set get.tau=0.2", "leave it out"),
    Mistake("an unknown recipe", "train --recipe papr", "did you mean 'paper'"),
    Mistake("an unknown preset", "train --preset quik", "did you mean 'quick'"),
    Mistake("an unknown setting", "train --setting udaa", "did you mean 'uda'"),
    Mistake("a crop larger than the image", "train --set data.crop=300", "a crop cannot be larger"),
    Mistake("validation without ssda", "train --select validation", "--setting ssda"),
    Mistake("a warm-up that never ends", f"train {FOLDER} --set {TINY} train.warmup_steps=9", "leaves no step"),
    # a file of settings
    Mistake("no such file", "train --config gone.yaml", "gone.yaml"),
    Mistake("bad YAML", "train --config bad.yaml", "not valid YAML"),
    Mistake("a list for sections", "train --config list.yaml", "must hold sections"),
    Mistake("a picture for a file of settings", "train --config data/photo/ant/000.png", "000.png: it is no text file"),
    # images
    Mistake("an unknown data set", "train --data oficehome", "did you mean 'office-home'"),
    Mistake("no root", "train --data folder --source photo --target sketch", "--root"),
    Mistake("a root that is not there", "train --data folder --root gone --source a --target b", "gone"),
    Mistake("an empty folder", "train --data folder --root empty --source a --target b", "empty"),
    Mistake("a domain that is not there", f"train {FOLDER} --target sketsh", "sketch"),
    Mistake("no target", "train --data folder --root data --source photo", "--target"),
    Mistake("a folder of text files", "train --data folder --root texts --source a --target a", "texts"),
    Mistake("unreadable images", f"train --data folder --root torn --source a --target a --set {TINY}", "--bad-images"),
    Mistake("labels that are no numbers", "train --data lists --root data --source words.txt --target words.txt",
            "words.txt"),
    Mistake("more classes than the source has", "train --data lists --root data --source a.txt --target many.txt",
            "many.txt"),
    Mistake("more classes than there are", f"train {FOLDER} --setting pda --set {TINY} data.pda_classes=9",
            "data.pda_classes must be 1 to 3"),
    Mistake("more shots than images", f"train {FOLDER} --setting ssda --set {TINY} data.shots=12", "data.shots=12"),
    Mistake("fewer images than classes", f"train {FOLDER} --set {TINY} data.limit=2", "data.limit=2"),
    # networks and weights
    Mistake("an unknown network", f"train {FOLDER} --set network.name=resnet51", "did you mean resnet"),
    Mistake("a misspelt model of timm", f"train {FOLDER} --set network.name=timm/resnet51", "timm"),
    Mistake("a web page for weights", f"train {FOLDER} --set {TINY} network.weights=page.pth", "page.pth"),
    Mistake("an empty file for weights", f"train {FOLDER} --set {TINY} network.weights=nothing.pth", "nothing.pth"),
    Mistake("weights of another network", f"train {FOLDER} --set {TINY} network.weights=other.pth", "does not fit"),
    Mistake("ImageNet's weights of `small`", f"train {FOLDER} --set network.name=small", "network.weights=none"),
    Mistake("a device that is not there", f"train {FOLDER} --set {TINY} train.device=cuda:77", "cuda:77"),
    # runs
    Mistake("a folder that holds a run", f"train {FOLDER} --set {TINY} --out run", "--resume auto"),
    Mistake("two runs in one folder", f"train {FOLDER} --set {TINY} --out taken", "taken"),
    Mistake("another method, resumed", f"train {FOLDER} --set {TINY} --method mcc --out run --resume auto",
            "other settings"),
    Mistake("a file for the run's folder", f"train {FOLDER} --set {TINY} --out bad.yaml", "bad.yaml"),
    Mistake("a link to nowhere for the run's folder", f"train {FOLDER} --set {TINY} --out dangling",
            "it is a link to nowhere"),
    Mistake("features of none", "train --data features --root empty --source a --target b", "fastget features"),
    Mistake("features of another width", "train --data features --root wide --source photo --target sketch "
            "--out narrow-run --resume auto", "imported from wide.pt"),
    # after training
    Mistake("no such run", "predict --checkpoint gone data", "gone"),
    Mistake("a damaged checkpoint", "predict --checkpoint torn.pt data", "torn.pt"),
    Mistake("a text file for a checkpoint", "eval --checkpoint bad.yaml", "bad.yaml is a text file, not a checkpoint"),
    Mistake("nothing to predict", "predict --checkpoint run empty", "empty"),
    Mistake("images that are not there", "predict --checkpoint run gone.jpg", "no such file", code=1),
    Mistake("no class to name", "predict --checkpoint run data --top-k 0", "top-k must lie between 1 and"),
    Mistake("a domain to score that is not there", "eval --checkpoint run --target sketsh", "sketch"),
    Mistake("an unknown kind of export", "export --checkpoint run --out model.tflite", ".safetensors"),
    Mistake("a report of an empty folder", "report empty", "empty"),
    Mistake("a report of nothing", "report gone", "gone"),
    Mistake("a card without a run", "report empty --card", "empty"),
    # studies and data
    Mistake("a sweep without values", "sweep --set get.tau=0.2", "get.tau=0.1,0.2"),
    Mistake("a sweep over nothing", "sweep", "--set"),
    Mistake("a comparison of an unknown method", "compare --methods get,mc", "did you mean 'mcc'"),
    Mistake("a pair of unknown domains", "compare --data folder --root data --tasks photo-sketsh",
            "did you mean 'photo-sketch'"),
    Mistake("no job at a time", "compare --jobs 0", "at least 1"),
    Mistake("an unknown data set to show", "data show ofice31 --root data", "did you mean 'office31'"),
    Mistake("bad files, checked", "data check folder --root torn", "torn", code=1),
    Mistake("a quality beyond 100", "data pack folder --root data --quality 101", "at most 100"),
    Mistake("features without a place", "features --data folder --root data", "--out"),
    Mistake("features of a text file", "features import bad.yaml --out f --name x --backbone y", "is a text file"),
    # what said nothing, or too much
    Mistake("an empty name for the run's folder", f"train {FOLDER} --set {TINY} --out ''", "--out is empty"),
    Mistake("an empty name for the file of settings", "train --config ''", "--config is empty"),
    Mistake("a method of one's own with a slip", "train --set method.module=slip.py", "slip.py, line 2: SyntaxError"),
    Mistake("a method of one's own that fails", "train --set method.module=fails.py", "fails.py, line 1: OSError"),
    Mistake("a module without a method", "train --set method.module=none.py", "registers no method"),
    Mistake("a negative number of workers", "data show folder --root data --workers -1", "0 or more"),
    Mistake("a word for pixels", "data pack folder --root data --resize x", "a whole number"),
]  # fmt: skip


def prepare(folder: Path) -> None:
    """What the commands find where they are typed."""
    write_domains(folder / "data", per_class=4)
    (folder / "empty").mkdir()
    (folder / "dangling").symlink_to("nowhere")
    (folder / "texts" / "a" / "b").mkdir(parents=True)
    (folder / "texts" / "a" / "b" / "read.me").write_text("words")
    (folder / "torn" / "a" / "b").mkdir(parents=True)
    (folder / "torn" / "a" / "b" / "0.jpg").write_bytes(b"\xff\xd8\xff\xe0 and no more")
    (folder / "bad.yaml").write_text("get: {tau: [\n")
    (folder / "list.yaml").write_text("- get\n- train\n")
    (folder / "words.txt").write_text("photo/ant/000.png an ant\n")
    (folder / "a.txt").write_text("photo/ant/000.png 0\nphoto/bee/000.png 1\n")
    (folder / "many.txt").write_text("sketch/ant/000.png 0\nsketch/cat/000.png 7\n")
    (folder / "page.pth").write_text("<!DOCTYPE html><html>404 not found</html>")
    (folder / "nothing.pth").write_bytes(b"")
    (folder / "slip.py").write_text("# mine\ndef method(:\n")
    (folder / "fails.py").write_text("raise OSError('no such thing')\n")
    (folder / "none.py").write_text("number = 1\n")
    torch.save({"weight": torch.ones(2, 2)}, folder / "other.pth")
    where = {"data.name": "folder", "data.root": str(folder / "data"), "data.source": "photo", "data.target": "sketch"}
    given = dict(pair.split("=") for pair in TINY.split()) | {"train.tensorboard": "false", "train.batch_size": "4"}
    run = fastget.train({**where, **given, "train.out": str(folder / "run")}, quiet=True).folder
    content = (run / "checkpoints" / "final.pt").read_bytes()
    (folder / "torn.pt").write_bytes(content[: len(content) // 2])
    _two_widths(folder)


def _two_widths(folder: Path) -> None:
    """A run on features, and other features in place of its own."""
    for name, width in (("narrow", 4), ("wide", 6)):
        few = {domain: torch.rand(6, width) for domain in ("photo", "sketch")}
        labels = {domain: torch.arange(6) % 3 for domain in few}
        torch.save({"feats": few, "labels": labels, "classes": ["a", "b", "c"]}, folder / f"{name}.pt")
        words = ["features", "import", str(folder / f"{name}.pt"), "--out", str(folder / name)]
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            assert main([*words, "--name", "few", "--backbone", "none"]) == 0
    where = {"data.name": "features", "data.root": str(folder / "narrow"), "data.source": "photo"}
    steps = {"train.max_steps": 2, "train.warmup_steps": 1, "train.batch_size": 4, "train.tensorboard": False}
    fastget.train({**where, **steps, "data.target": "sketch", "train.out": str(folder / "narrow-run")}, quiet=True)


def answer(mistake: Mistake) -> tuple[int, str]:
    """Exit code and what is said, in this process; an exception that leaves `main` is a traceback, and leaves this."""
    said = io.StringIO()
    taken = held(Path("taken")) if "taken" in mistake.command else nullcontext()
    with taken, contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            code = main(shlex.split(mistake.command))
        except SystemExit as end:  # argparse's way
            code = int(end.code or 0)
    return code, said.getvalue()


def wrong(mistake: Mistake, code: int, said: str) -> str | None:
    """What is wrong with an answer; None if it is as it should be."""
    if "Traceback" in said:
        return "a traceback"
    if code != mistake.code:
        return f"exit code {code}, not {mistake.code}"
    return None if mistake.says in " ".join(said.split()) else f"nothing of {mistake.says!r}"


# --- docs/errors.md --------------------------------------------------------------------------------

PAGE = ROOT / "docs" / "errors.md"
BEGIN = "<!-- mistakes: made by python -m tests.commands.mistakes -->"
SECTIONS = {  # the first mistake of each
    "no command": "Words",
    "a misspelt field": "Settings",
    "no such file": "A file of settings",
    "an unknown data set": "Images",
    "an unknown network": "Networks and weights",
    "a folder that holds a run": "Runs",
    "no such run": "After training",
    "a sweep without values": "Studies and data",
    "an empty name for the run's folder": "And more",
}
ENTRY = re.compile(r"^### ([^\n]+)\n\n`([^\n]+)`\n\n```text\n(.*?)\n```$", re.MULTILINE | re.DOTALL)


def typed(mistake: Mistake) -> str:
    """The command without the settings that only make it quick."""
    words = mistake.command.replace(f"--set {TINY} --", "--").replace(f"--set {TINY} ", "--set ")
    return f"fastget {words.replace(f' --set {TINY}', '')}".strip()


def told(said: str) -> str:
    """What was said, on one line: without usage and place, and with nothing of this machine."""
    line = " ".join(said.replace(f"{Path.cwd()}/", "").split())
    _, mark, words = line.partition("error: " if "usage: " in line else "fastget: ")
    line = re.sub(r"sha256 [0-9a-f]+", "sha256 ...", words if mark else line)
    owner = r"by `.*?` \(process \d+ on \S+, since [^)]+\)"
    line = re.sub(owner, "by `fastget train` (process ... on ..., since ...)", line)
    return re.sub(r"\(choose from [^)]*\)", lambda found: found[0].replace("'", ""), line)  # Python 3.11 quotes them


def page_part() -> str:
    """All mistakes, in the current folder that `prepare` has filled."""
    parts = [BEGIN]
    for mistake in MISTAKES:
        if mistake.what in SECTIONS:
            parts.append(f"## {SECTIONS[mistake.what]}")
        words = textwrap.wrap(told(answer(mistake)[1]), 110, break_long_words=False, break_on_hyphens=False)
        said = "\n".join(words)
        parts.append(f"### {mistake.what[0].upper()}{mistake.what[1:]}\n\n`{typed(mistake)}`\n\n```text\n{said}\n```")
    return "\n\n".join(parts) + "\n"


def stored() -> dict[str, tuple[str, str]]:
    """The page's entries: mistake -> (command, answer on one line)."""
    text = PAGE.read_text(encoding="utf-8")
    return {what.lower(): (command, " ".join(words.split())) for what, command, words in ENTRY.findall(text)}


def differs(mistake: Mistake, said: str) -> str | None:
    """What is wrong with the page's entry; None where it agrees. Words of Python and of other packages may differ with
    their versions: most of a message has to be the same, and what a person needs of it all."""
    command, words = stored().get(mistake.what.lower(), ("", ""))
    again = "run python -m tests.commands.mistakes"
    if command != typed(mistake):
        return f"docs/errors.md lacks `{typed(mistake)}`: {again}"
    alike = difflib.SequenceMatcher(None, words.split(), told(said).split()).ratio()
    if mistake.says not in words or alike < 0.7:
        return f"docs/errors.md has another answer: {again}\n{words}\n{told(said)}"
    return None


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="mistakes-") as place:
        prepare(Path(place))
        os.chdir(place)
        part = page_part()
        os.chdir("/")
    PAGE.write_text(PAGE.read_text(encoding="utf-8").partition(BEGIN)[0] + part, encoding="utf-8")
    sys.exit()
