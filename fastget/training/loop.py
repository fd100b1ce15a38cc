"""The loop around the steps: logging, evaluation, checkpoints, and stopping without losing anything."""

from __future__ import annotations

import math
import resource
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from fastget.common.errors import Interrupted, RunFailed
from fastget.evaluation.score import Evaluation
from fastget.evaluation.selection import better
from fastget.loading.loader import TooManyBadImages
from fastget.runs.folder import BEFORE, RunFolder
from fastget.runs.sinks.display import Display
from fastget.runs.sinks.tensorboard import Board
from fastget.training.cost import bytes_of
from fastget.training.engine import Batches, Engine
from fastget.training.profiling import Profile


class Loop:
    """Runs an engine to its last step."""

    def __init__(
        self,
        engine: Engine,
        run: RunFolder,
        display: Display,
        board: Board,
        profile: Profile | None,
        best: dict[str, float],  # of the criterion of train.select, so far
    ) -> None:
        self.engine, self.run, self.display, self.board, self.profile = engine, run, display, board, profile
        self.clock = Clock()
        self.saved_step = engine.step
        self.best = best
        self.stop_after: int | None = None  # a signal that came with the last step
        self.bad: list[dict[str, Any]] = []  # files that turned bad while the run went on

    def fit(self) -> Evaluation:
        """From the engine's step to the last one; the evaluation of the final model."""
        engine = self.engine
        engine.model.train()
        batches = engine.batches()
        final: Evaluation | None = None
        with _signals() as asked:
            try:
                while engine.step < engine.plan.max_steps:
                    final = self._step(batches)
                    if asked or engine.ranks.world > 1:
                        self._heed(asked)
            except TooManyBadImages as error:
                raise self._given_up(error) from error
            finally:
                batches.close()
        return final if final is not None else engine.evaluate()

    def _step(self, batches: Iterator[Batches]) -> Evaluation | None:
        """One step, and what is due after it."""
        engine = self.engine
        with self.clock.waiting(), engine.timer.phase("data"):
            batch = next(batches)
        self._name_bad(batch)
        engine.train_step(batch)
        self._keep_before()
        self.clock.steps += 1
        self.clock.images += sum(len(part.labels) for part in batch.given) * engine.ranks.world
        if self.profile is not None:
            self.profile.step()
        if self._due(engine.config.train.log_every):
            self._log()
        result = self._evaluate() if self._due(engine.plan.eval_every) else None
        if self._due(engine.plan.checkpoint_every):
            self._save()
        return result

    def _due(self, every: int) -> bool:
        return self.engine.step == self.engine.plan.max_steps or self.engine.step % every == 0

    # --- stopping early -----------------------------------------------------------------------

    def _heed(self, asked: list[int]) -> None:
        """Stop if a signal asked for it; many ranks agree on it at log intervals."""
        engine = self.engine
        together = engine.ranks.world == 1 or self._due(engine.config.train.log_every)
        if not together or not engine.ranks.any(bool(asked), engine.device):
            return
        number = asked[0] if asked else signal.SIGTERM
        if engine.step == engine.plan.max_steps:
            self.stop_after = number  # this run is done; the next seed's is not to start
            return
        if self.saved_step != engine.step:
            self._save()
        raise Interrupted(number, f"after step {engine.step} of {engine.plan.max_steps}; the run is saved")

    def _given_up(self, error: TooManyBadImages) -> RunFailed:
        """Too many files turned bad. One rank alone can save; among many the others wait in another place."""
        if self.engine.ranks.world == 1:
            if self.saved_step != self.engine.step:
                self._save()
            return RunFailed(f"after step {self.engine.step}, which is saved: {error}")
        return RunFailed(f"after step {self.engine.step}: {error}")

    def _name_bad(self, batch: Batches) -> None:
        for bad in (bad for part in batch.given for bad in part.bad):
            self.display.warn(f"step {bad.step}: {bad.path} {bad.reason}; another image takes its place")
            self.bad.append({"path": bad.path, "reason": bad.reason, "step": bad.step})

    # --- logging ------------------------------------------------------------------------------

    def _log(self) -> None:
        """The means since the last log line. The one place in the loop that waits for the device."""
        engine = self.engine
        steps = engine.counted
        means = engine.read_means()
        self._refuse_nonfinite(means["loss"], steps)
        lr = engine.optimizer.param_groups[-1]["lr"]
        times = {**self.clock.read(), "memory_mib": memory(engine.device)}
        cost = engine.meter.read(engine.ranks.world)
        times |= {"method_ms": round(cost.method_ms, 3), "method_mib": round(bytes_of(engine.method) / 2**20, 2)}
        epoch, rate = round(engine.step / engine.plan.epoch_steps, 4), times["images_per_second"]
        speed = {"epoch": epoch, "lr": lr, **times}
        if engine.ranks.main:
            self.run.log(step=engine.step, epoch=epoch, **means, lr=lr, images_per_second=rate)
            self.run.log_times(step=engine.step, **times, image_passes=cost.passes)
            self.board.logged(engine.step, means, speed)
            self.display.logged(engine.step, means, speed, cost.words())

    def _refuse_nonfinite(self, loss: float, steps: int) -> None:
        engine = self.engine
        before = self.run.checkpoints.steps()
        good = f"The last good checkpoint is {before[0] if before else 'none yet'}. "
        tries = [part for part in ("a lower optim.lr", engine.method.advice) if part]
        advice = f"Try {', '.join(tries)}"
        try:
            engine.method.check()
        except ValueError as error:
            raise RunFailed(
                f"between steps {engine.step - steps} and {engine.step}: {error}. {good}{advice}"
            ) from error
        if not math.isfinite(loss):
            raise RunFailed(
                f"the loss became {loss} between steps {engine.step - steps} and {engine.step}. {good}{advice}"
            )

    # --- evaluation and checkpoints -----------------------------------------------------------

    def _evaluate(self) -> Evaluation:
        engine = self.engine
        with self.clock.paused():
            result = engine.evaluate()
            figures = engine.method.figures() if engine.started else {}
            if engine.ranks.main:
                self.run.log(step=engine.step, **result.logged())
                self._log_labels(figures)
                self.display.evaluated(engine.step, result)
                self._show(result, figures)
            self._select(result)
        return result

    def _log_labels(self, figures: dict[str, Tensor]) -> None:
        """What the method holds the target's classes for, and what its labels are worth, for the run's report."""
        engine = self.engine
        shares = {tag: value for tag, value in figures.items() if value.ndim == 1}
        self.run.log_labels(engine.step, engine.pseudo_labels(), shares)

    def _keep_before(self) -> None:
        """The features before adaptation, in the one step that has them."""
        sampled, self.engine.sampled_before = self.engine.sampled_before, None
        if sampled is not None and self.engine.ranks.main:
            with self.clock.paused():
                self.run.keep_features(BEFORE, sampled)

    def _show(self, result: Evaluation, figures: dict[str, Tensor]) -> None:
        engine, board = self.engine, self.board
        if not board.on:
            return
        board.evaluated(engine.step, result)
        board.figures(engine.step, figures, engine.target)
        if engine.domains.origin is None and engine.step in (engine.plan.eval_every, engine.plan.max_steps):
            board.images(engine.step, {"source": engine.loaders.source, "target": engine.loaders.target})

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
        if self.engine.ranks.main:
            self._write("selected", lambda: self.run.checkpoints.save_as("selected.pt", state))

    def _sound_state(self) -> dict[str, Any]:
        """The state to save. A checkpoint never holds NaN: a run must be able to go on from it."""
        engine = self.engine
        if not engine.finite():
            self._refuse_nonfinite(math.nan, engine.counted)
        return {**engine.state(), "best": self.best}

    def _save(self) -> None:
        with self.clock.paused():
            state = self._sound_state()
            if self.engine.ranks.main:
                self._write(f"step {self.engine.step}", lambda: self.run.checkpoints.save(self.engine.step, state))
        self.saved_step = self.engine.step

    def _write(self, what: str, write: Any) -> None:
        try:
            write()
        except OSError as error:
            kept = self.run.checkpoints.steps()
            before = f"{kept[0]} is kept" if kept else "there is none before it"
            self.display.warn(f"cannot save the checkpoint of {what} ({error.strerror}): {before}")


@contextmanager
def _signals() -> Iterator[list[int]]:
    """SIGTERM and SIGINT are noted, to be acted on between two steps; a second one stops at once."""
    asked: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)

    try:
        old = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGINT)}
    except ValueError:  # not in the main thread: the program around us handles its signals
        yield asked
        return
    try:
        yield asked
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def memory(device: torch.device) -> float:
    """Peak memory in MiB: of the GPU, or of the process on a CPU."""
    if device.type == "cuda":
        return round(torch.cuda.max_memory_allocated(device) / 2**20, 1)
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)


class Clock:
    """Images per second as total images over total time, evaluations and checkpoints left out."""

    def __init__(self) -> None:
        self.images = 0
        self.steps = 0
        self._read = (0, 0.0)  # steps and seconds when it was read last
        self._start = time.perf_counter()
        self._out = 0.0
        self._waited = 0.0

    def read(self) -> dict[str, float]:
        elapsed = time.perf_counter() - self._start - self._out
        return {
            "images_per_second": round(self.images / elapsed, 2),
            "data_wait": round(self._waited / elapsed, 4),
            "paused_s": round(self._out, 3),
            "step_ms": round(1000 * self._since(elapsed), 3),
        }

    def _since(self, elapsed: float) -> float:
        """Seconds a step since the last call: as old as what the meter has measured of the method."""
        steps, seconds = self.steps - self._read[0], elapsed - self._read[1]
        self._read = (self.steps, elapsed)
        return seconds / max(1, steps)

    @contextmanager
    def paused(self) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self._out += time.perf_counter() - start

    @contextmanager
    def waiting(self) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self._waited += time.perf_counter() - start
