"""`fastget train` as one call: every seed's run, the source-only model beside GeT's, and their summary."""

from __future__ import annotations

import dataclasses
import statistics
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from fastget.config import Config, make_config
from fastget.data import load_domains
from fastget.display import Display, results_table
from fastget.engine import Engine
from fastget.evaluation import Evaluation
from fastget.lists import ImageList
from fastget.runs import RunFolder, choose_folder, read_summary, write_json


@dataclasses.dataclass(frozen=True)
class Result:
    """Where the run was saved, and its summary (the content of summary.json)."""

    folder: Path
    summary: dict[str, Any]


def choose_device(name: str) -> torch.device:
    """`auto`: the current CUDA device if there is one, else the CPU."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"train.device must be cpu, cuda, cuda:N or auto, got {name!r}") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            f"train.device={name}, but torch sees no CUDA device: use train.device=cpu, or see `fastget doctor`"
        )
    return device


def train(config: Config | None = None, *, console: Console | None = None, quiet: bool = False) -> Result:
    """Train as configured (no configuration: GeT on `digits`); the same as the command `fastget train`.

    With several seeds: a folder a seed, and a summary over them with mean and std.
    """
    config = config or make_config()
    console = console or Console(quiet=quiet)
    device = choose_device(config.train.device)
    if config.train.threads:
        torch.set_num_threads(config.train.threads)
    source, target = load_domains(config.data)
    folder = choose_folder(config)
    seeds = config.train.seeds
    summaries = []
    for seed in seeds:
        place = folder if len(seeds) == 1 else folder / f"seed-{seed}"
        one = dataclasses.replace(config, train=dataclasses.replace(config.train, seeds=(seed,)))
        summaries.append(_run_seed(one, seed, source, target, device, place, console, quiet))
    summary = summaries[0]
    if len(seeds) > 1:
        summary = over_seeds(summaries)
        write_json(folder / "summary.json", summary)
    if not quiet:
        _print_end(console, summary, folder)
    return Result(folder, summary)


def _run_seed(
    config: Config,
    seed: int,
    source: ImageList,
    target: ImageList,
    device: torch.device,
    folder: Path,
    console: Console,
    quiet: bool,
) -> dict[str, Any]:
    run = RunFolder(folder, config.train.keep_checkpoints)
    if config.train.resume == "auto" and (done := run.summary) is not None:
        console.print(f"{folder}: already done", highlight=False)
        return done
    engine = Engine(config, seed, source, target, device)
    title = f"{config.method.name}, seed {seed}"
    with Display(title, engine.max_steps, console, quiet) as display:
        if config.train.resume == "auto":
            state = run.checkpoints.newest_intact(display.warn)
            if state is not None:
                engine.load(state)
                console.print(f"going on from step {engine.step} of {folder}", highlight=False)
        run.start(config, device, engine.step)
        final = engine.fit(run, display)
        run.checkpoints.save_final(engine.state())
    summary = summarise(engine, source, target, final)
    run.finish(summary, target, final)
    return summary


def summarise(engine: Engine, source: ImageList, target: ImageList, final: Evaluation) -> dict[str, Any]:
    """summary.json of one seed: the final model, never a selected one; target labels serve these figures only."""
    config = engine.config
    return {
        "method": config.method.name,
        "data": config.data.name,
        "setting": config.data.setting,
        "source": source.name,
        "target": target.name,
        "seed": engine.seed,
        "steps": engine.step,
        "images": {"source": len(source), "target": len(target)},
        **final.metrics(),
        "source_only": engine.before,  # the model at the end of the warm-up, before it adapts
        "per_class_accuracy": dict(zip(target.classes, final.per_class, strict=True)),
    }


def over_seeds(summaries: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean and standard deviation (of the sample) over seeds."""
    first = summaries[0]
    shared = {key: first[key] for key in ("method", "data", "setting", "source", "target", "steps", "images")}
    over: dict[str, Any] = {**shared, "seeds": [s["seed"] for s in summaries]}
    for field in ("accuracy", "mean_class_accuracy"):
        values = [s[field] for s in summaries]
        if None in values:
            over[field] = over[f"{field}_std"] = None
            continue
        over[field], over[f"{field}_std"] = statistics.fmean(values), statistics.stdev(values)
        over[f"{field}_per_seed"] = values
    if first["source_only"] is not None:
        before = [s["source_only"] for s in summaries]
        fields = ("accuracy", "mean_class_accuracy")
        over["source_only"] = {field: _mean([b[field] for b in before]) for field in fields}
    names = first["per_class_accuracy"]
    over["per_class_accuracy"] = {
        name: None if names[name] is None else statistics.fmean(s["per_class_accuracy"][name] for s in summaries)
        for name in names
    }
    return over


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _print_end(console: Console, summary: dict[str, Any], folder: Path) -> None:
    title = f"{summary['source']} -> {summary['target']}, final model on {summary['images']['target']:,} target images"
    rows = [(summary["method"], summary)]
    if summary.get("source_only"):
        rows.insert(0, ("source-only (end of the warm-up)", summary["source_only"]))
    console.print(results_table(title, rows))
    console.print(f"saved in {folder}", highlight=False)


__all__ = ["Result", "choose_device", "over_seeds", "read_summary", "train"]
