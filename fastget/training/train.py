"""`fastget train` as one call: every seed's run, the source-only model beside GeT's, and their summary."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from fastget.common.device import choose_device
from fastget.common.progress import progress_bar
from fastget.common.ranks import Ranks, joined
from fastget.common.text import and_more
from fastget.config import Config, make_config
from fastget.data.find import Domains, load_domains
from fastget.evaluation.score import Evaluation
from fastget.runs.checkpoint import FINAL
from fastget.runs.folder import RunFolder, choose_folder, write_json
from fastget.runs.sinks.display import Display, results_table
from fastget.runs.sinks.tensorboard import Board
from fastget.training.engine import Engine, RunFailed, refuse_other_settings
from fastget.training.loop import Interrupted, Loop
from fastget.training.profiling import profiling


@dataclasses.dataclass(frozen=True)
class Result:
    """Where the run was saved, and its summary (the content of summary.json)."""

    folder: Path
    summary: dict[str, Any]


def train(
    config: Config | Mapping[str, Any] | None = None, *, console: Console | None = None, quiet: bool = False
) -> Result:
    """Train as configured, by a Config or by {"section.field": value} (nothing: GeT on `digits`), as `fastget train`.

    With several seeds: a folder a seed, and a summary over them with mean and std. Under torchrun every rank calls it,
    and rank 0 alone writes and prints.
    """
    if not isinstance(config, Config):
        config = make_config(config)
    if config.train.threads:
        torch.set_num_threads(config.train.threads)
    with joined(choose_device(config.train.device, "train.device")) as (ranks, device):
        quiet = quiet or not ranks.main
        console = console if console is not None and ranks.main else Console(quiet=quiet)
        folder = Path(ranks.gather(str(choose_folder(config)) if ranks.main else None)[0])
        domains = _load_domains(config, console, quiet)
        seeds = config.train.seeds
        summaries: list[dict[str, Any]] = []
        try:
            for seed in seeds:
                place = folder if len(seeds) == 1 else folder / f"seed-{seed}"
                one = dataclasses.replace(config, train=dataclasses.replace(config.train, seeds=(seed,)))
                summary, stop = _run_seed(Job(one, seed, domains, device, ranks, place), console, quiet)
                summaries.append(summary)
                if stop is not None and len(summaries) < len(seeds):
                    raise Interrupted(stop, f"after seed {seed}, which is done")
        except Interrupted as error:
            raise Interrupted(error.number, f"{error.text}. Go on with: --resume auto --out {folder}") from error
        summary = summaries[0]
        if len(seeds) > 1:
            summary = over_seeds(summaries)
            if ranks.main:
                write_json(folder / "summary.json", summary)
        if not quiet:
            _print_end(console, summary, folder)
    return Result(folder, summary)


def _load_domains(config: Config, console: Console, quiet: bool) -> Domains:
    """The lists, after a quick look at every file, with a progress bar where that takes long; what was left out."""
    with progress_bar("looking at the images", None, console, hidden=quiet) as advance:
        domains = load_domains(config.data, advance=advance)
    for note in domains.notes:
        console.print(note, highlight=False, markup=False)
    if domains.left_out:
        first = and_more([f"{problem.path} {problem.reason}" for problem in domains.left_out])
        console.print(f"left out {len(domains.left_out)} bad images: {first}", highlight=False, markup=False)
    return domains


@dataclasses.dataclass(frozen=True)
class Job:
    """One seed's run."""

    config: Config
    seed: int
    domains: Domains
    device: torch.device
    ranks: Ranks
    folder: Path


def _run_seed(job: Job, console: Console, quiet: bool) -> tuple[dict[str, Any], int | None]:
    """The run's summary, and the signal that asked for no further run, if one did."""
    config, ranks = job.config, job.ranks
    run = RunFolder(job.folder, config.train.keep_checkpoints)
    resume = config.train.resume == "auto"
    done = ranks.gather(_finished(run, config) if resume and ranks.main else None)[0]
    if done is not None:
        console.print(f"{job.folder}: already done", highlight=False, markup=False)
        return dict(done), None
    engine = Engine(config, job.seed, job.domains, job.device, ranks)
    with Display(f"{config.method.name}, seed {job.seed}", engine.max_steps, console, quiet) as display:
        state = run.checkpoints.restore(engine.load, display.warn) if resume else None
        if state is not None:
            console.print(f"going on from step {engine.step} of {job.folder}", highlight=False, markup=False)
        if ranks.main:
            run.start(config, job.device, job.domains.protocol, engine.step)
        ranks.barrier()
        try:
            return _fit(job, engine, run, display, (state or {}).get("best", {}))
        except OSError as error:
            raise RunFailed(
                f"cannot write to {job.folder} ({error.strerror}). What is there is kept: make room, then go on with "
                "--resume auto"
            ) from error


def _finished(run: RunFolder, config: Config) -> dict[str, Any] | None:
    """The summary of a finished run, if the folder holds one of these settings."""
    summary = run.summary
    if summary is not None and "seeds" in summary:
        raise ValueError(f"{run.folder} holds the runs of seeds {summary['seeds']}: give the same --seeds to go on")
    if summary is not None:
        refuse_other_settings(run.stored_config(), config)
    return summary


def _fit(
    job: Job, engine: Engine, run: RunFolder, display: Display, best: dict[str, float]
) -> tuple[dict[str, Any], int | None]:
    config, ranks = job.config, job.ranks
    board = Board(job.folder, config.train.tensorboard and ranks.main, engine.step)
    with profiling(job.folder / "trace.json", job.device) if config.train.profile else nullcontext() as profile:
        loop = Loop(engine, run, display, board, profile)
        loop.best = best
        try:
            final = loop.fit()
        finally:
            board.close()
    if profile is not None and ranks.main:
        profile.report(display.console)
    final_state = engine.state()
    bad = [file for files in ranks.gather(loop.bad) for file in files]
    summary = summarise(engine, final, bad)
    if ranks.main:
        run.checkpoints.save_as(FINAL, final_state)
        run.finish(summary, engine.target, final)
    ranks.barrier()
    return summary, loop.stop_after


def summarise(engine: Engine, final: Evaluation, bad: list[dict[str, Any]]) -> dict[str, Any]:
    """summary.json of one seed: the final model, never a selected one; target labels serve these figures only."""
    config, domains = engine.config, engine.domains
    return {
        "method": config.method.name,
        "data": config.data.name,
        "setting": config.data.setting,
        "source": domains.source.name,
        "target": domains.target.name,
        "seed": engine.seed,
        "steps": engine.step,
        "images": {role: len(images) for role, images in domains.lists().items()},
        "left_out": [problem.path for problem in domains.left_out],
        "turned_bad": bad,
        **final.metrics(),
        "label_free": final.label_free,
        "source_only": engine.before_metrics,  # the model at the end of the warm-up, before it adapts
        "per_class_accuracy": dict(zip(domains.target.classes, final.per_class, strict=True)),
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
    console.print(f"saved in {folder}", highlight=False, markup=False, soft_wrap=True)
