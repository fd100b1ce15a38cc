"""The loop around the steps: logging, evaluation, checkpoints, and stopping without losing anything."""

from __future__ import annotations

import math
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from fastget.bases.base import Step
from fastget.common.errors import Interrupted, RunFailed
from fastget.common.ranks import Vote
from fastget.common.signals import noted
from fastget.evaluation.infer import Between
from fastget.evaluation.score import Evaluation
from fastget.evaluation.selection import better
from fastget.evaluation.verdict import of_agreement
from fastget.loading.stream import TooManyBadImages
from fastget.runs.folder import BEFORE, RunFolder
from fastget.runs.sinks.display import Display
from fastget.runs.sinks.tensorboard import Board
from fastget.training.clock import Clock
from fastget.training.cost import Cost, bytes_of
from fastget.training.engine import Engine
from fastget.training.passes import planned
from fastget.training.profiling import Profile
from fastget.training.resume import state_of

EVALUATION, START = "evaluation", "the method's start"  # passes over images that are no training


class _Heeded(Exception):
    """A signal was heeded in the midst of a pass over the target."""


class Loop:
    """Runs an engine to its last step."""

    def __init__(
        self,
        engine: Engine,
        run: RunFolder,
        display: Display,
        board: Board,
        profile: Profile | None,
        state: dict[str, Any] | None,  # of the checkpoint that the engine goes on from
    ) -> None:
        self.engine, self.run, self.display, self.board, self.profile = engine, run, display, board, profile
        self.clock = Clock()
        self.passes = planned(engine)
        self.cost = Cost({}, 0.0)  # of a step since the last log line
        self.saved_step = None if state is None else engine.steps_done  # of the newest checkpoint on disk
        self.unsaved = ""  # why there is no later one, where it could not be written
        self.best: dict[str, float] = (state or {}).get("best", {})  # of the criterion of train.select, so far
        self.owed = bool((state or {}).get("owed"))  # whether the evaluation of this step was left for later
        self.asked: list[int] = []  # signals
        self.stop_after: int | None = None  # one that came with the last step
        self.bad: list[dict[str, Any]] = []  # files that turned bad while the run went on
        self._pass = ""  # over images, in progress: an evaluation, or one of the method's; and
        self._looked = 0  # the images of it that are done
        self._vote = Vote(engine.ranks, engine.device)  # whether any rank has a signal to heed

    def fit(self) -> Evaluation:
        """From the engine's step to the last one; the evaluation of the final model."""
        engine = self.engine
        engine.model.train()
        steps = engine.steps()
        final: Evaluation | None = None
        with noted(self._answer, say=self.display.answer) as self.asked:
            try:
                if self.owed:
                    final = self._evaluate()
                while engine.steps_done < engine.plan.max_steps:
                    final = self._step(steps)
                    if self.asked or engine.ranks.world > 1:
                        self._heed()
                final = final if final is not None else self._looked_at()
                self._name_unscored()
                return final
            except _Heeded:
                where = f"in the {EVALUATION} after" if self._pass == EVALUATION else f"before {START}, after"
                raise self._stopped(where) from None
            except TooManyBadImages as error:
                raise self._given_up(error) from error
            finally:
                steps.close()

    def _step(self, steps: Iterator[Step]) -> Evaluation | None:
        """One step, and what is due after it."""
        engine = self.engine
        with self.clock.waiting(), engine.timer.phase("data"):
            step = next(steps)
        self._name_bad(step)
        waiting = not engine.started
        engine.train_step(step, self._starting)
        if waiting and engine.started:
            for doubt in of_agreement(engine.method.agreement()):
                self.display.warn(doubt.text)
        self._keep_before()
        self.clock.steps += 1
        self.clock.images += sum(len(batch.labels) for batch in step.batches) * engine.ranks.world
        if self.profile is not None:
            self.profile.step()
        if self._due(engine.config.train.log_every):
            self._log()
        self.display.stepped(engine.steps_done, self.clock.left(*self._to_come(engine.steps_done - 1)))
        result = self._evaluate() if self._due(engine.plan.eval_every) else None
        if self._due(engine.plan.checkpoint_every):
            self._save()
        return result

    def _due(self, every: int) -> bool:
        return self.engine.steps_done == self.engine.plan.max_steps or self.engine.steps_done % every == 0

    def _to_come(self, evaluated: int) -> tuple[int, int]:
        """Steps that are left, and images to look at, where the evaluations up to a step are done."""
        start = self.passes.looks_after(self.engine.steps_done)
        return self.engine.plan.max_steps - self.engine.steps_done, self.passes.evaluation_after(evaluated) + start

    # --- stopping early -----------------------------------------------------------------------

    def _answer(self) -> str:
        """What a signal is answered with: when the run stops, and what is saved then."""
        engine = self.engine
        last = "nothing is saved yet" if self.saved_step is None else f"step {self.saved_step} is the last one saved"
        again = f"A second signal stops at once ({last})"
        if self._pass:
            return f"stopping after this batch of images; step {engine.steps_done} is saved then. {again}"
        when = "this step" if engine.ranks.world == 1 else "the next log interval's step, with all ranks"
        return f"stopping after {when}, which is saved then. {again}"

    def _heed(self) -> None:
        """Stop if a signal asked for it; many ranks agree on it at log intervals."""
        engine = self.engine
        together = engine.ranks.world == 1 or self._due(engine.config.train.log_every)
        if not together or not engine.ranks.any(bool(self.asked), engine.device):
            return
        if engine.steps_done == engine.plan.max_steps:
            self.stop_after = self._number()  # this run is done; the next seed's is not to start
            return
        raise self._stopped("after")

    @contextmanager
    def _looking(self, what: str) -> Iterator[Between]:
        """A pass over images that is no training: it is shown, and a signal ends it. A pass that a signal ended leaves
        its name in `_pass`."""
        self._pass, self._looked = what, 0
        yield self._between
        self._pass, self._looked = "", 0

    @contextmanager
    def _starting(self) -> Iterator[Between]:
        """The passes that the method asks for at its start, or at an epoch's."""
        with self.clock.evaluating(), self._looking(START) as between:
            yield between

    def _looked_at(self) -> Evaluation:
        with self._looking(EVALUATION) as between:
            return self.engine.evaluate(between)

    def _between(self, count: int) -> None:
        """Between two batches of a pass over images: show how far it is, heed signals. Every rank comes here."""
        engine, evaluating = self.engine, self._pass == EVALUATION
        self._looked += count * engine.ranks.world  # the others are about as far
        self.clock.looked += count * engine.ranks.world
        total = self.passes.of_evaluation(engine.last) if evaluating else self.passes.start or len(engine.target)
        self.display.looking(self._pass, min(self._looked, total), total)
        steps, images = self._to_come(engine.steps_done - evaluating)
        self.display.time_left(self.clock.left(steps, max(0, images - self._looked)))
        if self._vote(bool(self.asked)):
            raise _Heeded

    def _number(self) -> int:
        return self.asked[0] if self.asked else signal.SIGTERM

    def _stopped(self, where: str) -> Interrupted | RunFailed:
        """How a run ends that a signal asked to stop: with its state on disk, or not, and it says which."""
        engine = self.engine
        where += f" step {engine.steps_done} of {engine.plan.max_steps}"
        if self._on_disk():
            return Interrupted(self._number(), f"{where}; the run is saved")
        name = signal.Signals(self._number()).name
        return RunFailed(f"stopped by {name} {where}, which could not be saved: {self.unsaved}")

    def _on_disk(self) -> bool:
        """Save what is not yet; whether it is on disk then."""
        if self.saved_step != self.engine.steps_done:
            self._save()
        return self.saved_step == self.engine.steps_done

    def _given_up(self, error: TooManyBadImages) -> RunFailed:
        """Too many files turned bad. One rank alone can save; among many the others wait in another place."""
        after = f"after step {self.engine.steps_done}"
        if self.engine.ranks.world == 1:
            after += ", which is saved" if self._on_disk() else f", which could not be saved ({self.unsaved})"
        return RunFailed(f"{after}: {error}, then go on with --resume auto")

    def _name_bad(self, step: Step) -> None:
        for bad in (bad for batch in step.batches for bad in batch.bad):
            self.display.warn(f"step {bad.step}: {bad.path} {bad.reason}; another image takes its place")
            self.bad.append({"path": bad.path, "reason": bad.reason, "step": bad.step})

    def _name_unscored(self) -> None:
        """The files that evaluation, or a method's pass over the whole target, could not read since the last call."""
        loaders, done = self.engine.loaders, self.engine.steps_done
        named = {bad["path"] for bad in self.bad if bad.get("unscored")}
        for loader in dict.fromkeys((loaders.evaluation, loaders.interim, loaders.validation)):
            for bad in loader.bad.files if loader is not None else ():
                if bad.path not in named:
                    named.add(bad.path)
                    self.display.warn(f"step {done}: {bad.path} {bad.reason}; it is not scored")
                    self.bad.append({"path": bad.path, "reason": bad.reason, "step": done, "unscored": True})

    # --- logging ------------------------------------------------------------------------------

    def _log(self) -> None:
        """The means since the last log line. The one place in the loop that waits for the device."""
        engine = self.engine
        steps = engine.counted
        means = engine.read_means()
        self._refuse_nonfinite(means["loss"], steps)
        lr = engine.optimizer.param_groups[-1]["lr"]
        times = {**self.clock.read(), "memory_mib": memory(engine.device)}
        cost = self.cost = engine.meter.read(engine.ranks.world)
        self.clock.passes += steps * sum(cost.passes.values())
        times |= {"method_ms": round(cost.method_ms, 3), "method_mib": round(bytes_of(engine.method) / 2**20, 2)}
        epoch, rate = round(engine.steps_done / engine.plan.epoch_steps, 4), times["images_per_second"]
        speed = {"epoch": epoch, "lr": lr, **times}
        if engine.ranks.main:
            self.run.log(step=engine.steps_done, epoch=epoch, **means, lr=lr, images_per_second=rate)
            self.run.log_times(step=engine.steps_done, **times, image_passes=cost.passes)
            self.board.logged(engine.steps_done, means, speed)
            self.display.logged(engine.steps_done, means, speed, cost.words())

    def _refuse_nonfinite(self, loss: float, steps: int) -> None:
        engine = self.engine
        before = self.run.checkpoints.steps()
        tries = ", ".join(part for part in ("a lower optim.lr", engine.method.advice) if part)
        advice = f"The last good checkpoint is {before[0] if before else 'none yet'}. Try {tries}"
        since = f"between steps {engine.steps_done - steps} and {engine.steps_done}"
        try:
            engine.method.check()
        except ValueError as error:
            raise RunFailed(f"{since}: {error}. {advice}") from error
        if not math.isfinite(loss):
            raise RunFailed(f"the loss became {loss} {since}. {advice}")

    # --- evaluation and checkpoints -----------------------------------------------------------

    def _evaluate(self) -> Evaluation:
        engine = self.engine
        self.owed = True
        with self.clock.evaluating():
            result = self._looked_at()
            self._name_unscored()
            figures = engine.method.figures() if engine.started else {}
            if engine.ranks.main:
                self.run.log(step=engine.steps_done, **result.logged())
                self._log_labels(figures)
                self.display.evaluated(engine.steps_done, result)
                self._show(result, figures)
            self.owed = False
            self._select(result)
        return result

    def _log_labels(self, figures: dict[str, Tensor]) -> None:
        """What the method holds the target's classes for, and what its labels are worth, for the run's report."""
        engine = self.engine
        shares = {tag: value for tag, value in figures.items() if value.ndim == 1}
        labels = engine.assessor.pseudo_labels(engine.started, engine.plan.progress(engine.steps_done))
        self.run.log_labels(engine.steps_done, labels, shares)

    def _keep_before(self) -> None:
        """The features before adaptation, in the one step that has them."""
        assessor = self.engine.assessor
        sampled, assessor.sampled_before = assessor.sampled_before, None
        if sampled is not None and self.engine.ranks.main:
            with self.clock.paused():
                self.run.keep_features(BEFORE, sampled)

    def _show(self, result: Evaluation, figures: dict[str, Tensor]) -> None:
        engine, board = self.engine, self.board
        if not board.on:
            return
        board.evaluated(engine.steps_done, result)
        board.figures(engine.steps_done, figures, engine.target)
        if engine.domains.origin is None and engine.steps_done in (engine.plan.eval_every, engine.plan.max_steps):
            board.images(engine.steps_done, {"source": engine.loaders.source, "target": engine.loaders.target})

    def _select(self, result: Evaluation) -> None:
        """Keep the checkpoint that is best by the criterion of train.select."""
        name = self.engine.config.train.select
        if name == "none":
            return
        value = result.criterion(name)
        if value is None or not better(name, value, self.best.get(name)):
            return
        self.best = {name: value}
        state = {**self._sound_state(), "selected_by": self.best}
        self._write("selected", lambda: self.run.checkpoints.save_as("selected.pt", state))

    def _sound_state(self) -> dict[str, Any]:
        """The state to save. A checkpoint never holds NaN: a run must be able to go on from it."""
        engine = self.engine
        if not engine.finite():
            self._refuse_nonfinite(math.nan, engine.counted)
        owed = {"owed": True} if self.owed else {}  # a run that goes on makes up for the evaluation that was left
        return {**state_of(engine), "best": self.best, **owed}

    def _save(self) -> None:
        """The checkpoint of this step. Every rank comes to know whether it is on disk."""
        done = self.engine.steps_done
        with self.clock.paused():
            state = self._sound_state()
            why = self._write(f"step {done}", lambda: self.run.checkpoints.save(done, state))
            why = self.engine.ranks.gather(why)[0]
        self.saved_step, self.unsaved = (self.saved_step, why) if why else (done, "")

    def _write(self, what: str, write: Callable[[], object]) -> str:
        """By rank 0. Why it cannot be, and what is kept; empty if it was written."""
        if not self.engine.ranks.main:
            return ""
        try:
            write()
        except OSError as error:
            kept = self.run.checkpoints.steps()
            before = f"{kept[0]} is kept" if kept else "there is none before it"
            self.display.warn(f"cannot save the checkpoint of {what} ({error.strerror}): {before}")
            newest = f"the newest checkpoint on disk is {kept[0]}" if kept else "no checkpoint is on disk"
            return f"{error.strerror}; {newest}. Make room, then go on with --resume auto"
        return ""


def memory(device: torch.device) -> float:
    """Peak memory in MiB: of the GPU, or of the process on a CPU."""
    if device.type == "cuda":
        return round(torch.cuda.max_memory_allocated(device) / 2**20, 1)
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)
