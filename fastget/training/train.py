"""`fastget train` as one call: every seed's run, and their summary."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from fastget.common.device import choose_device
from fastget.common.errors import Interrupted, RunFailed
from fastget.common.progress import progress_bar
from fastget.common.ranks import Ranks, joined
from fastget.common.text import and_more
from fastget.config import Config, make_config
from fastget.config.combinations import title_of
from fastget.data.find import Domains, load_domains
from fastget.evaluation.score import Evaluation
from fastget.methods import method_of
from fastget.runs.checkpoint import FINAL
from fastget.runs.folder import AFTER, RunFolder, choose_folder, write_json
from fastget.runs.sinks.display import Display, results_table
from fastget.runs.sinks.tensorboard import Board
from fastget.runs.summary import FILE, SeedsSummary, SeedSummary, Summary, over_seeds
from fastget.training.build import task_of
from fastget.training.engine import Engine, refuse_other_settings
from fastget.training.loop import Loop
from fastget.training.profiling import Profile


@dataclasses.dataclass(frozen=True)
class Result:
    """Where the run was saved, and its summary (the content of summary.json)."""

    folder: Path
    summary: SeedSummary | SeedsSummary


def train(
    config: Config | Mapping[str, Any] | None = None, *, console: Console | None = None, quiet: bool = False
) -> Result:
    """Train as configured, by a Config or by {"section.field": value} (nothing: all defaults), as `fastget train`.

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
        config = with_backbone(config, domains)
        seeds = config.train.seeds
        summaries: list[SeedSummary] = []
        try:
            for seed in seeds:
                place = folder if len(seeds) == 1 else folder / f"seed-{seed}"
                one = dataclasses.replace(config, train=dataclasses.replace(config.train, seeds=(seed,)))
                done, stop = _run_seed(Job(one, seed, domains, device, ranks, place), console, quiet)
                summaries.append(done)
                if stop is not None and len(summaries) < len(seeds):
                    raise Interrupted(stop, f"after seed {seed}, which is done")
        except Interrupted as error:
            raise Interrupted(error.number, f"{error.text}. Go on with: --resume auto --out {folder}") from error
        summary: SeedSummary | SeedsSummary = summaries[0]
        if len(seeds) > 1:
            summary = over_seeds(summaries)
            if ranks.main:
                write_json(folder / FILE, summary.to_dict())
        if not quiet:
            _print_end(console, summary, folder)
    return Result(folder, summary)


def _load_domains(config: Config, console: Console, quiet: bool) -> Domains:
    """The lists, after a quick look at every file, with a progress bar where that takes long; what was left out."""
    with progress_bar("looking at the images", None, console, hidden=quiet) as advance:
        need_validation = config.train.select == "validation"
        domains = load_domains(config.data, advance=advance, need_validation=need_validation)
    for note in domains.notes:
        console.print(note, highlight=False, markup=False)
    if domains.left_out:
        first = and_more([f"{problem.path} {problem.reason}" for problem in domains.left_out])
        console.print(f"left out {len(domains.left_out)} bad images: {first}", highlight=False, markup=False)
    return domains


def with_backbone(config: Config, domains: Domains) -> Config:
    """The configuration that names the backbone of the features, where there are any, in place of one that is not
    built: for the record, and so that a run does not go on with another's."""
    if domains.origin is None:
        return config
    made_by = dataclasses.replace(config.network, name=domains.origin.backbone, weights=domains.origin.weights_tag)
    return dataclasses.replace(config, network=made_by)


@dataclasses.dataclass(frozen=True)
class Job:
    """One seed's run."""

    config: Config
    seed: int
    domains: Domains
    device: torch.device
    ranks: Ranks
    folder: Path


def _run_seed(job: Job, console: Console, quiet: bool) -> tuple[SeedSummary, int | None]:
    """The run's summary, and the signal that asked for no further run, if one did."""
    config, ranks = job.config, job.ranks
    run = RunFolder(job.folder, config.train.keep_checkpoints)
    resume = config.train.resume == "auto"
    done: SeedSummary | None = ranks.gather(_finished(run, config) if resume and ranks.main else None)[0]
    if done is not None:
        console.print(f"{job.folder}: already done", highlight=False, markup=False)
        return done, None
    profile = Profile(job.folder / "trace.json", job.device) if config.train.profile else None
    if kept := method_of(config.method.name).keeps(config.own, task_of(config, job.domains), ranks.world):
        console.print(kept, highlight=False, markup=False)
    engine = Engine(config, job.seed, job.domains, job.device, ranks, profile)
    with Display(f"{config.title}, seed {job.seed}", engine.plan.max_steps, console, quiet) as display:
        state = run.checkpoints.restore(engine.load, display.warn) if resume else None
        if state is not None:
            console.print(f"going on from step {engine.step} of {job.folder}", highlight=False, markup=False)
        if ranks.main:
            run.start(config, job.device, job.domains.protocol, engine.step)
        ranks.barrier()
        try:
            return _fit(Loop(engine, run, display, _board(job, engine), profile, (state or {}).get("best", {})), job)
        except OSError as error:
            raise RunFailed(
                f"cannot write to {job.folder} ({error.strerror}). What is there is kept: make room, then go on with "
                "--resume auto"
            ) from error


def _finished(run: RunFolder, config: Config) -> SeedSummary | None:
    """The summary of a finished run, if the folder holds one of these settings."""
    summary = run.summary
    if summary is None:
        return None
    if isinstance(summary, SeedsSummary):
        raise ValueError(f"{run.folder} holds the runs of seeds {summary.seeds}: give the same --seeds to go on")
    refuse_other_settings(run.stored_config(), config)
    return summary


def _board(job: Job, engine: Engine) -> Board:
    return Board(job.folder, job.config.train.tensorboard and job.ranks.main, engine.step)


def _fit(loop: Loop, job: Job) -> tuple[SeedSummary, int | None]:
    engine, run, ranks = loop.engine, loop.run, job.ranks
    try:
        final = loop.fit()
    finally:
        loop.board.close()
    if loop.profile is not None and ranks.main:
        loop.profile.report(loop.display.console, engine.method, ranks.world)
    final_state = engine.state()
    bad = [file for files in ranks.gather(loop.bad) for file in files]
    summary = summarise(engine, final, bad)
    if ranks.main:
        run.checkpoints.save_as(FINAL, final_state)
        if engine.sampled is not None:
            run.keep_features(AFTER, engine.sampled)
        run.finish(summary, engine.target, final)
    ranks.barrier()
    return summary, loop.stop_after


def summarise(engine: Engine, final: Evaluation, bad: list[dict[str, Any]]) -> SeedSummary:
    """The summary of one seed: the final model, never a selected one."""
    config, domains = engine.config, engine.domains
    return SeedSummary(
        method=config.method.name,
        base=config.method.base,
        recipe=config.method.recipe,
        settings=config.of_method(),
        data=config.data.name,
        setting=config.data.setting,
        source=domains.source.name,
        target=domains.target.name,
        seed=engine.seed,
        steps=engine.step,
        images={role: len(images) for role, images in domains.lists().items()},
        left_out=[problem.path for problem in domains.left_out],
        turned_bad=bad,
        accuracy=final.accuracy,
        mean_class_accuracy=final.mean_class_accuracy,
        label_free=final.label_free,
        validation=_validation(final),
        source_only=engine.before_metrics,
        per_class_accuracy=dict(zip(domains.target.classes, final.per_class, strict=True)),
    )


def _validation(final: Evaluation) -> dict[str, Any] | None:
    held_out = final.validation
    return None if held_out is None else {**held_out.metrics(), "images": len(held_out.index)}


def _print_end(console: Console, summary: Summary, folder: Path) -> None:
    title = f"{summary.source} -> {summary.target}, final model on {summary.images['target']:,} target images"
    rows: list[tuple[str, Mapping[str, Any]]] = [(title_of(summary.method, summary.base), summary)]
    if summary.source_only:
        rows.insert(0, ("end of the warm-up, before it adapts", summary.source_only))
    console.print(results_table(title, rows))
    console.print(f"saved in {folder}", highlight=False, markup=False, soft_wrap=True)
