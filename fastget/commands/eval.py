"""`fastget eval`: a trained network's accuracy on any labelled domain."""

from __future__ import annotations

import argparse
import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fastget.commands.options import add_checkpoint, add_fields, add_json, add_set, given_fields, print_json
from fastget.commands.output import say
from fastget.commands.predict import add_serving, open_predictor
from fastget.common.progress import progress_bar
from fastget.common.text import and_more, escaped
from fastget.config import DataConfig, make_config
from fastget.data.domains import load_domains
from fastget.data.feature_store import Origin
from fastget.data.folders import unused_notes
from fastget.data.lists import ImageList
from fastget.data.relative_paths import as_found, path_fields

if TYPE_CHECKING:
    from fastget.evaluation.score import Evaluation
    from fastget.loading.loader import Loader
    from fastget.loading.stream import BadFile
    from fastget.serving.predictor import Predictor

HELP = "accuracy of a trained network on a labelled domain, by default the run's own target"
OPTIONS = {  # as in `fastget train`: option -> (field, help)
    "--data": ("data.name", "data set: digits, folder, lists ..."),
    "--root": ("data.root", "folder that the images lie in"),
    "--source": ("data.source", "domain that tells the classes: a folder's name, or a list file"),
    "--target": ("data.target", "domain to evaluate: a folder's name, or a list file"),
    "--bad-images": ("data.bad_images", "unreadable images: error (stop) or skip (leave them out)"),
}
OF_THE_NETWORK = ("resize", "crop", "interpolation", "mean", "std")  # fields of data that the checkpoint fixes
OF_THE_MACHINE = ("loader", "workers", "bad_images")  # those that do not depend on which images they are


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `fastget eval`."""
    parser.description = (
        "Accuracy, mean class accuracy and per-class accuracy of a run's network. Without options: on the run's own "
        "target. Images are found as `fastget train` finds them, the classes being the source's; for a domain by "
        "itself, give it as --source and as --target. Labels are used for these figures only."
    )
    add_checkpoint(parser)
    add_serving(parser)
    add_fields(parser, OPTIONS, "; default: the run's own")
    add_set(parser, "any field of the data section", "data.field")
    parser.add_argument("--domain", choices=["target", "source"], default="target", help="which of the two to evaluate")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Exit code 0. ValueError is for wrong usage, and for a domain that does not fit the checkpoint."""
    if args.batch_size < 1:
        raise ValueError(f"--batch-size must be at least 1, got {args.batch_size}")
    settings = given_fields(args)
    predictor = open_predictor(args.checkpoint, args.device, args.precision)
    data = data_config(predictor, settings)
    images, features = find_domain(data, args.domain, predictor)
    check_domain(images, predictor)
    evaluation, bad = evaluate_domain(predictor, images, data, args.batch_size, features)
    report = describe(predictor, images, evaluation, bad)
    if bad:
        first = and_more([f"{one.path} {one.reason}" for one in bad], 3)
        say(f"warning: {len(bad):,} of {len(images):,} images could not be read, and are not scored: {first}")
    if args.json:
        print_json(report)
    else:
        title = f"{report['domain']}, {report['scored']:,} images, by {report['checkpoint']} (step {report['step']})"
        say(title, out=True)
        Console().print(_table(report))
    return 0


def evaluate_domain(
    predictor: Predictor,
    images: ImageList,
    data: DataConfig,
    batch_size: int,
    features: NDArray[Any] | None = None,  # (N, D), which take the place of the images
) -> tuple[Evaluation, list[BadFile]]:
    """The images through the run's own loader and evaluation; and those that could not be read."""
    from fastget.evaluation.score import evaluate

    loader = loader_of(predictor, images, data, batch_size, features)
    with progress_bar("evaluation", len(images)) as advance:
        return evaluate(predictor.network, loader, between=advance, dtype=predictor.dtype), loader.bad.files


def loader_of(
    predictor: Predictor, images: ImageList, data: DataConfig, batch_size: int, features: NDArray[Any] | None = None
) -> Loader:
    """The images, or their features, as the run's own evaluation loads them."""
    import torch

    from fastget.loading.loader import Loader
    from fastget.loading.sampling import EvalSampler
    from fastget.loading.stream import Stream

    made = predictor.preprocessing
    sampler = EvalSampler(len(images), batch_size, margin=made.margin)
    shown = None if features is None else torch.from_numpy(features).to(predictor.device)
    stream = Stream(images, sampler, made, None, data.bad_threshold, data.max_pixels, shown, data.dali_edges)
    return Loader(stream, predictor.device, data.loader, data.workers)


# --- which images --------------------------------------------------------------------------------


def data_config(predictor: Predictor, settings: Mapping[str, Any]) -> DataConfig:
    """The run's data section under the given settings. Of another data set, the run's places mean nothing."""
    for key in settings:
        section, _, name = key.partition(".")
        if section != "data":
            raise ValueError(f"eval takes settings of the data section, got {key}: the checkpoint fixes all others")
        if name in OF_THE_NETWORK:
            raise ValueError(f"{key} is fixed by the checkpoint, which was trained with it: leave it out")
    stored = predictor.config["data"]
    if settings.get("data.name", stored.get("name")) != stored.get("name"):
        stored = {name: stored[name] for name in (*OF_THE_NETWORK, *OF_THE_MACHINE) if name in stored}
    own = make_config({f"data.{name}": value for name, value in stored.items()}).data
    found, moved = as_found(dataclasses.replace(own, **_places(settings, own)))
    for note in moved:
        say(note)
    values = {f"data.{name}": getattr(found, name) for name in stored}
    return make_config({**values, **settings, "data.started_in": None}).data


def _places(settings: Mapping[str, Any], own: DataConfig) -> dict[str, Any]:
    """A place that the command line gives is looked for here alone: it takes the run's own out of the search."""
    given = [key.removeprefix("data.") for key in settings if key.removeprefix("data.") in path_fields(own)]
    return {name: os.path.abspath(str(settings[f"data.{name}"])) for name in given}


def find_domain(data: DataConfig, which: str, predictor: Predictor) -> tuple[ImageList, NDArray[Any] | None]:
    """The source's or the target's list, and its features for a network that is shown those."""
    if (data.name == "features") != (predictor.features_of is not None):
        shown = "images" if predictor.features_of is None else f"features of {predictor.features_of}"
        raise ValueError(f"the network of {predictor.checkpoint} is shown {shown}, and --data is {data.name}")
    with progress_bar("looking at the images", None) as advance:
        domains = load_domains(data, advance=advance)
    for problem in domains.left_out:
        say(f"left out: {problem.path} {problem.reason}")
    for note in unused_notes(domains.lists()[which].name, domains.unused.get(which, ())):
        say(note)
    if domains.origin is not None:
        _refuse_other_features(domains.origin, predictor)
    return domains.lists()[which], domains.features.get(which)


def _refuse_other_features(origin: Origin, predictor: Predictor) -> None:
    """An error unless they were made by the backbone of those that the network learned from."""
    learned = f"{predictor.features_of} ({predictor.config['network'].get('weights')})"
    if origin.tag != learned:
        raise ValueError(
            f"{predictor.checkpoint} learned from features of {learned}, and these are of {origin.tag}: "
            "make them by the same backbone"
        )


def check_domain(images: ImageList, predictor: Predictor) -> None:
    """An error unless the list is labelled with the checkpoint's classes."""
    if images.classes != predictor.classes:
        raise ValueError(
            f"the classes of {images.name} are not those of {predictor.checkpoint}: "
            f"{_difference(predictor.classes, images.classes)}. Give a --source with the classes that it was trained on"
        )
    if not images.labelled:
        raise ValueError(f"{images.name} has no labels to compare with: use `fastget predict`, or a labelled domain")


def _difference(expected: Sequence[str], found: Sequence[str]) -> str:
    if set(expected) == set(found):
        at = next(i for i, pair in enumerate(zip(expected, found, strict=False)) if pair[0] != pair[1])
        return f"they stand in another order (class {at}: expected {expected[at]!r}, found {found[at]!r})"
    lacking = [name for name in expected if name not in found]
    new = [name for name in found if name not in expected]
    words = [f"expected {len(expected)} classes, found {len(found)}"]
    words += [f"lacking {and_more(lacking)}"] if lacking else []
    words += [f"unknown {and_more(new)}"] if new else []
    return ", ".join(words)


# --- the figures ---------------------------------------------------------------------------------


def describe(
    predictor: Predictor, images: ImageList, evaluation: Evaluation, bad: Sequence[BadFile] = ()
) -> dict[str, Any]:
    """The content of --json."""
    scored = images.labels[evaluation.index]
    counts = np.bincount(scored, minlength=len(images.classes)).tolist()
    return {
        "checkpoint": str(predictor.checkpoint),
        "step": predictor.step,
        "backbone": predictor.backbone,
        "precision": str(predictor.dtype).removeprefix("torch."),
        "domain": images.name,
        "images": len(images),
        "scored": len(scored),
        "turned_bad": [{"path": one.path, "reason": one.reason} for one in bad],
        **evaluation.metrics(),
        "label_free": evaluation.label_free,
        "per_class_accuracy": dict(zip(images.classes, evaluation.per_class, strict=True)),
        "per_class_images": dict(zip(images.classes, counts, strict=True)),
    }


def _table(report: Mapping[str, Any]) -> Table:
    from fastget.runs.sinks.display import percent

    table = Table(show_footer=True)
    table.add_column("class", footer="accuracy\nmean class accuracy")
    table.add_column("images", justify="right", footer=f"{report['scored']:,}")
    total = f"{percent(report['accuracy'])}\n{percent(report['mean_class_accuracy'])}"
    table.add_column("accuracy", justify="right", footer=total)
    for name, accuracy in report["per_class_accuracy"].items():
        table.add_row(escape(escaped(name)), f"{report['per_class_images'][name]:,}", percent(accuracy))
    return table
