"""`fastget train` as one call: every seed's run, and their summary."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.markup import escape

from fastget.common.device import choose_device
from fastget.common.errors import Interrupted, RunFailed
from fastget.common.lock import held
from fastget.common.progress import progress_bar
from fastget.common.ranks import Ranks, joined
from fastget.common.signals import stopping
from fastget.common.text import and_more, escaped
from fastget.config import Config, make_config
from fastget.config.combinations import title_of
from fastget.data.domains import load_domains
from fastget.data.protocols import Domains
from fastget.data.relative_paths import with_start
from fastget.evaluation.classes import Classes
from fastget.evaluation.score import Evaluation
from fastget.evaluation.verdict import Finding, as_dicts
from fastget.methods import method_of
from fastget.networks.preprocessing import filled
from fastget.runs.checkpoint import FINAL
from fastget.runs.folder import AFTER, RunFolder, held_folder, write_json
from fastget.runs.sinks.classes import ROWS, made_of, show_classes
from fastget.runs.sinks.display import Display, results_table, show_verdict
from fastget.runs.sinks.tensorboard import Board
from fastget.runs.summary import FILE, SeedsSummary, SeedSummary, Summary, over_seeds
from fastget.training.build import task_of
from fastget.training.engine import Engine
from fastget.training.loop import Loop
from fastget.training.passes import full_run, planned
from fastget.training.profiling import Profile
from fastget.training.resume import go_on, refuse_other_settings, state_of


@dataclasses.dataclass(frozen=True)
class Result:
    """Where the run was saved, and its summary (the content of summary.json)."""

    folder: Path
    summary: SeedSummary | SeedsSummary


def train(
    config: Config | Mapping[str, Any] | None = None,
    *,
    console: Console | None = None,
    quiet: bool = False,
    brief: bool = False,  # a log without a terminal has a heading and the last evaluation of each seed
) -> Result:
    """Train as configured, by a Config or by {"section.field": value} (nothing: all defaults), as `fastget train`.

    With several seeds: a folder a seed, and a summary over them with mean and std. Under torchrun every rank calls it,
    and rank 0 alone writes and prints.
    """
    if not isinstance(config, Config):
        config = make_config(config)
    config = filled(config)
    if config.train.threads:
        torch.set_num_threads(config.train.threads)
    with joined(choose_device(config.train.device, "train.device")) as (ranks, device), ExitStack() as stack:
        quiet = quiet or not ranks.main
        console = console if console is not None and ranks.main else Console(quiet=quiet)
        held_here = held_folder(config)  # by rank 0
        folder = Path(ranks.decided(lambda: str(stack.enter_context(held_here))))
        config = dataclasses.replace(config, data=with_start(config.data))
        domains = _load_domains(config, console, quiet)
        config = with_backbone(config, domains)
        seeds = config.train.seeds
        summaries: list[SeedSummary] = []
        try:
            for seed in seeds:
                place = folder if len(seeds) == 1 else folder / f"seed-{seed}"
                one = dataclasses.replace(config, train=dataclasses.replace(config.train, seeds=(seed,)))
                asked = SeedRun(one, seed, domains, device, ranks, place, alone=len(seeds) == 1)
                with _held(place, folder, config, ranks):
                    done, stop = _run_seed(asked, console, quiet, brief)
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


@contextmanager
def _held(place: Path, folder: Path, config: Config, ranks: Ranks) -> Iterator[None]:
    """A seed's folder, where it has one of its own: it may be given as --out of another run."""
    with ExitStack() as stack:
        if place != folder:
            ranks.decided(lambda: stack.enter_context(held(place, take=config.train.lock == "take")))
        yield


def _load_domains(config: Config, console: Console, quiet: bool) -> Domains:
    """The lists, after a quick look at every file, with a progress bar where that takes long; what was left out."""
    saved = "while the images were looked at: what was found is remembered, and nothing else is saved yet"
    with stopping(saved), progress_bar("looking at the images", None, console, hidden=quiet) as advance:
        need_validation = config.train.select == "validation"
        domains = load_domains(config.data, advance=advance, need_validation=need_validation)
    batch = config.train.batch_size
    notes = domains.notes + [
        f"train.batch_size={batch} is more than the {len(images):,} images of {images.name}: a batch holds some of "
        "them several times"
        for images in (domains.source, domains.target)
        if batch > len(images)
    ]
    if domains.left_out:
        first = and_more([f"{problem.path} {problem.reason}" for problem in domains.left_out])
        notes.append(f"left out {len(domains.left_out)} bad images: {first}")
    for note in notes:
        console.print(escaped(note), highlight=False, markup=False, soft_wrap=True)
    return domains


def with_backbone(config: Config, domains: Domains) -> Config:
    """The configuration that names the backbone of the features, where there are any, in place of one that is not
    built: for the record, and so that a run does not go on with another's."""
    if domains.origin is None:
        return config
    made_by = dataclasses.replace(config.network, name=domains.origin.backbone, weights=domains.origin.weights_tag)
    return dataclasses.replace(config, network=made_by)


@dataclasses.dataclass(frozen=True)
class SeedRun:
    """One seed's run."""

    config: Config
    seed: int
    domains: Domains
    device: torch.device
    ranks: Ranks
    folder: Path
    alone: bool = True  # no other seed's run with it


def _run_seed(asked: SeedRun, console: Console, quiet: bool, brief: bool = False) -> tuple[SeedSummary, int | None]:
    """The run's summary, and the signal that asked for no further run, if one did."""
    config, ranks = asked.config, asked.ranks
    run = RunFolder(asked.folder, config.train.keep_checkpoints)
    resume = config.train.resume == "auto"
    done = ranks.decided(lambda: _finished(run, asked)) if resume else None
    if done is not None:
        console.print(f"{asked.folder}: already done", highlight=False, markup=False)
        return done, None
    profile = Profile(asked.folder / "trace.json", asked.device, console) if config.train.profile else None
    if kept := method_of(config.method.name).keeps(config.own, task_of(config, asked.domains), ranks.world):
        console.print(kept, highlight=False, markup=False)
    engine = Engine(config, asked.seed, asked.domains, asked.device, ranks, profile)
    if not brief:
        console.print(planned(engine).words(), highlight=False, markup=False, soft_wrap=True)
    with Display(f"{config.title}, seed {asked.seed}", engine.plan.max_steps, console, quiet, brief) as display:
        state = go_on(run, engine, display.warn) if resume else None
        if state is not None:
            console.print(f"going on from step {engine.steps_done} of {asked.folder}", highlight=False, markup=False)
            if engine.other_start:
                display.warn(engine.other_start)
        if ranks.main:
            owed = "owed" in (state or {})
            run.start(config, asked.device, asked.domains.protocol, engine.steps_done, engine.backbone, owed)
        ranks.barrier()
        try:
            return _fit(Loop(engine, run, display, _board(asked, engine), profile, state), asked)
        except OSError as error:
            raise RunFailed(
                f"cannot write to {asked.folder} ({error.strerror}). What is there is kept: make room, then go on with "
                "--resume auto"
            ) from error


def _finished(run: RunFolder, asked: SeedRun) -> SeedSummary | None:
    """The summary of a finished run, if the folder holds one of these settings. ValueError if it, or what there is of
    it, is of other data."""
    config, summary = asked.config, run.summary
    if summary is None:
        if run.checkpoints.files():
            run.refuse_other_data(asked.domains.protocol)
        return None
    if isinstance(summary, SeedsSummary):
        raise ValueError(f"{run.folder} holds the runs of seeds {summary.seeds}: give the same --seeds to go on")
    refuse_other_settings(run.stored_config(), config)
    run.refuse_other_data(asked.domains.protocol)
    return summary


def _board(asked: SeedRun, engine: Engine) -> Board:
    return Board(asked.folder, asked.config.train.tensorboard and asked.ranks.main, engine.steps_done)


def _fit(loop: Loop, asked: SeedRun) -> tuple[SeedSummary, int | None]:
    engine, run, ranks = loop.engine, loop.run, asked.ranks
    try:
        final = loop.fit()
        loop.display.close()
        verdict = engine.assessor.verdict(final)
        found = engine.assessor.classes(final, verdict)
        loop.board.classes(engine.steps_done, found, engine.target)
    finally:
        loop.board.close()
    if loop.profile is not None and ranks.main:
        loop.profile.report(loop.display.console, engine.method, ranks.world)
    final_state = state_of(engine)
    bad = [file for files in ranks.gather(loop.bad) for file in files]
    summary = summarise(engine, final, found, verdict, bad)
    if ranks.main:
        run.checkpoints.save_as(FINAL, final_state)
        if engine.assessor.sampled is not None:
            run.keep_features(AFTER, engine.assessor.sampled)
        run.finish(summary, engine.target, final, found)
        if not loop.display.quiet:
            show_classes(loop.display.console, found, made_of(engine.target.name), rows=ROWS if asked.alone else 0)
            if engine.config.train.preset != "none":
                text = full_run(engine, *loop.clock.speed())
                loop.display.console.print(text, highlight=False, markup=False, soft_wrap=True)
    ranks.barrier()
    return summary, loop.stop_after


def summarise(
    engine: Engine, final: Evaluation, found: Classes, verdict: list[Finding], bad: list[dict[str, Any]]
) -> SeedSummary:
    """The summary of one seed: the final model, never a selected asked."""
    config, domains, told = engine.config, engine.domains, engine.method.agreement()
    return SeedSummary(
        method=config.method.name,
        base=config.method.base,
        recipe=config.method.recipe,
        settings=config.of_method(),
        data=config.data.name,
        setting=config.data.setting,
        backbone=engine.backbone,
        source=domains.source.name,
        target=domains.target.name,
        seed=engine.seed,
        steps=engine.steps_done,
        images={role: len(images) for role, images in domains.lists().items()},
        scored=len(final.index),
        left_out=[problem.path for problem in domains.left_out],
        turned_bad=bad,
        accuracy=final.accuracy,
        mean_class_accuracy=final.mean_class_accuracy,
        label_free=final.label_free,
        verdict=as_dicts(verdict),
        agreement=None if told is None else told.numbers(),
        classes=found.summary(),
        validation=_validation(final),
        source_only=engine.assessor.before,
        per_class_accuracy=dict(zip(domains.target.classes, final.per_class, strict=True)),
    )


def _validation(final: Evaluation) -> dict[str, Any] | None:
    found = final.validation
    return None if found is None else {**found.metrics(), "images": len(found.index)}


def _print_end(console: Console, summary: Summary, folder: Path) -> None:
    known = summary.images["target"]
    scored = known if summary.scored is None else summary.scored
    some = f"{known:,}" if scored == known else f"{scored:,} of {known:,}"
    title = escape(escaped(f"{summary.source} -> {summary.target}, final model on {some} target images"))
    rows: list[tuple[str, Mapping[str, Any]]] = [(title_of(summary.method, summary.base), summary)]
    if summary.source_only:
        rows.insert(0, ("end of the warm-up, before it adapts", summary.source_only))
    show_verdict(console, summary)
    console.print(results_table(title, rows))
    console.print(f"saved in {folder}", highlight=False, markup=False, soft_wrap=True)
