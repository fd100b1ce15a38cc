"""One seed's run: its model, optimizer and streams, and a step of training.

Nothing in a step waits for the device: losses are summed there, and the loop reads them at log intervals.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fastget.bases.base import Losses, Step
from fastget.common.precision import autocast, choose_precision
from fastget.common.ranks import Ranks
from fastget.config import Config, changed
from fastget.data.protocols import Domains
from fastget.evaluation.classes import Classes, Tally, estimate, tally, with_latest
from fastget.evaluation.infer import Between, Inferred, Look, WholeTarget, infer, nothing
from fastget.evaluation.sample import Sample, Sampled, quality
from fastget.evaluation.score import Evaluation, assess
from fastget.evaluation.verdict import Finding, collapsed, in_effect, of_accuracy, of_agreement, of_coverage, untold
from fastget.loading.loader import Loader
from fastget.loading.stream import Batch
from fastget.methods.base import Seen
from fastget.networks.preprocessing import filled
from fastget.networks.provenance import Provenance, other_start, record_of
from fastget.training.allocator import keep_freed_memory
from fastget.training.build import Loaders, build_model, distributed, optimizer_of
from fastget.training.cost import Meter
from fastget.training.graph import Parts, graph_of
from fastget.training.optim import fill_momentum
from fastget.training.schedule import make_plan, set_lr, weight


class Batches(NamedTuple):
    """What a step trains on."""

    source: Batch
    target: Batch | None  # none in the warm-up, nor for a method that never sees it
    shots: Batch | None  # SSDA's labelled target images

    @property
    def given(self) -> list[Batch]:
        return [batch for batch in self if batch is not None]


def refuse_other_settings(stored: dict[str, dict[str, Any]], config: Config) -> None:
    """ValueError if a run's stored configuration leads elsewhere than this one."""
    differing = changed(stored, config)
    if differing:
        raise ValueError(f"the run there has other settings: {'; '.join(differing)}. Choose another --out")


class Engine:
    """Everything that one seed's run consists of."""

    def __init__(
        self,
        config: Config,
        seed: int,
        domains: Domains,
        device: torch.device,
        ranks: Ranks | None = None,
        meter: Meter | None = None,
    ) -> None:
        if device.type == "cpu":
            keep_freed_memory()
        config = filled(config)
        self.config, self.seed, self.device, self.ranks = config, seed, device, ranks or Ranks()
        self.domains, self.target = domains, domains.target
        self.timer = self.meter = meter or Meter(device)
        self.dtype = choose_precision(config.train.precision, device, config.train.force_precision)
        torch.manual_seed(seed)
        self.model = build_model(config, domains, device, self.ranks, self.timer)
        self.network, self.method = self.model.network, self.model.method
        self.backbone = self._record()  # as the run began with it
        self.other_start = ""  # in words, if a checkpoint began with another
        self.optimizer = optimizer_of(self.model, config, device)
        self.step_model = distributed(self.model, device, self.ranks)
        self.scaler = torch.amp.GradScaler(device.type, enabled=self.dtype == torch.float16)
        self.graph = graph_of(
            config, device, self.dtype, self.ranks, self.model, self.learn, self.meter, self.optimizer
        )
        if self.scaler.is_enabled() or self.graph is not None:
            fill_momentum(self.optimizer)
        self.loaders = Loaders(config, seed, domains, device, self.ranks, self.model.needs, self.dtype)
        self.plan = make_plan(config.train, type(self.method), self.loaders.epoch_steps)
        self.step = 0  # steps done
        self.started = False  # whether the method has: its first batch of the target was shown
        self.before_metrics: dict[str, Any] | None = None  # of the model at the end of the warm-up, once it is reached
        self.tallies: list[Tally] = []  # of the last evaluations since then, or of all if it never comes
        self.between: Between = nothing  # batches of an evaluation, and of a method's pass over the target
        self.apart: Callable[[], AbstractContextManager[object]] = nullcontext  # around such a pass of a method
        self.sample = Sample(len(self.target), config.train.watch, self.ranks)
        self.sampled: Sampled | None = None  # at the last evaluation, and
        self.sampled_before: Sampled | None = None  # at the end of the warm-up: until it is written
        self.totals: dict[str, Tensor] = {}  # losses since the last log, on the device
        self.counted = 0  # steps in them

    # --- a step -------------------------------------------------------------------------------

    def batches(self) -> Generator[Batches, None, None]:
        """The batches of each step from the current one on."""
        plan, loaders = self.plan, self.loaders
        first = plan.warmup_steps if "target" in self.method.needs else plan.max_steps
        first = 0 if "target" in self.model.needs else first
        source = loaders.source.batches(self.step)
        target = loaders.target.batches(max(self.step, first)) if first < plan.max_steps else None
        shots = loaders.shots.batches(self.step) if loaders.shots is not None else None
        try:
            for step in range(self.step, plan.max_steps):
                yield Batches(
                    next(source),
                    next(target) if target is not None and step >= first else None,
                    next(shots) if shots is not None else None,
                )
        finally:
            for stream in (source, target, shots):
                if stream is not None:
                    stream.close()

    def train_step(self, batches: Batches) -> None:
        """The forward pass and the method's term, backward, the optimizer, then the method's memory."""
        step = self._step(batches)
        if step.adapting:
            self._start_method()
        set_lr(self.optimizer, self.step, self.plan.max_steps)
        for parts in self.learn(step) if self.graph is None else self.graph(step):
            self._accumulate(parts)
        self.meter.count()
        self.counted += 1
        self.step += 1

    def learn(self, step: Step) -> Parts:
        """All that a step does on the device; what is logged of it, for each of the optimizer's steps."""
        logged = []
        for part in self.model.parts(step):
            with self.timer.phase("own step") if part.source is None else nullcontext():
                losses, overflow = self._optimize(part)
            logged.append(losses.parts())
        if losses.seen is not None and losses.term is not None:
            with self.timer.phase("memory"):
                self.method.after_step(losses.seen, losses.term, overflow, lambda: self._again(step))
        return logged

    def _optimize(self, part: Step) -> tuple[Losses, Tensor | None]:
        """Forward, backward, the optimizer's step."""
        with autocast(self.device, self.dtype):
            losses: Losses = self.step_model(part)
        with self.timer.phase("backward"):
            self.optimizer.zero_grad(set_to_none=True)
            torch.autograd.backward(self.scaler.scale(losses.loss))
        with self.timer.phase("optimizer"):
            return losses, self._optimizer_step()

    def _step(self, batches: Batches) -> Step:
        source, target, shots = batches
        progress = self.plan.progress(self.step)
        started = "target" in self.method.needs and self.step >= self.plan.warmup_steps
        return Step(
            source.images,
            source.labels,
            None if target is None else target.images,
            None if target is None else target.place,
            None if shots is None else shots.images,
            None if shots is None else shots.labels,
            weight(self.config.method, progress),
            progress,
            None if target is None else target.second,
            started,
            self.seed,
            self.step,
        )

    def _start_method(self) -> None:
        """Before its first batch of the target, and at every epoch's first, the method may look at all of it."""
        if self.started and self.step % self.plan.epoch_steps:
            return
        with self.apart(), self.timer.phase("evaluation"):
            target, source = self.loaders.evaluation, self.loaders.whole_source
            whole = WholeTarget(self.network, target, source, self.between, self.dtype)
            if not self.started:
                self.tallies = []  # the warm-up's say nothing of the adapted model
                self.method.start(whole)
            self.method.start_epoch(whole)
            if not self.started and (whole.asked or self.plan.warmup_steps):
                self._look_before(whole)
        self.started = True

    def _look_before(self, whole: WholeTarget) -> None:
        """What the model that was not adapted yet makes of the target, for the record."""
        if whole.asked:
            share = whole.share
            self.sample.add_all(share)
        else:
            share = self._infer(self.loaders.evaluation, self.sample.add)
        found = assess(share, self.ranks)
        covered = in_effect(self._histogram(found))
        self.before_metrics = {"step": self.step, **found.metrics(), "classes_in_effect": covered}
        self.sampled_before = self.sample.read()

    def _again(self, step: Step) -> Seen:
        with autocast(self.device, self.dtype):
            return self.model.again(step)

    def _optimizer_step(self) -> Tensor | None:
        """The optimizer's step, unless a float16 gradient overflowed: then the flag, left on the device, is not 0."""
        if not self.scaler.is_enabled():
            self.optimizer.step()
            return None
        self.scaler.unscale_(self.optimizer)
        # torch has no public way to this flag that does not wait for the device
        found = self.scaler._found_inf_per_device(self.optimizer)
        overflow = torch.stack([flag.to(self.device) for flag in found.values()]).sum()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return overflow

    def _accumulate(self, parts: dict[str, Tensor]) -> None:
        for name, value in parts.items():
            self.totals[name] = self.totals[name] + value if name in self.totals else value

    def read_means(self) -> dict[str, float]:
        """The mean losses since the last call, over all ranks. Waits for the device."""
        means = {name: float(self.ranks.mean(total)) / self.counted for name, total in self.totals.items()}
        self.totals, self.counted = {}, 0
        return means

    def finite(self) -> bool:
        """Whether all parameters and buffers are, on every rank. Waits for the device."""
        tensors = (*self.model.parameters(), *self.model.buffers())
        sums = [tensor.detach().sum(dtype=torch.float32) for tensor in tensors if tensor.numel()]
        return not self.ranks.any(not bool(torch.isfinite(torch.stack(sums)).all()), self.device)

    @property
    def last(self) -> bool:
        """Whether the model is the final one, which is evaluated on the whole target."""
        return self.step >= self.plan.max_steps

    def evaluate(self) -> Evaluation:
        """The current model on the target, or on a draw of it before the last step, and on SSDA's validation list
        where there is one."""
        with self.timer.phase("evaluation"):
            share = self._infer(self.loaders.evaluation if self.last else self.loaders.interim, self.sample.add)
            result = assess(share, self.ranks)
            self.tallies = with_latest(self.tallies, tally(self.step, result))
            self.sampled = self.sample.read()
            drawn, held_out = self.loaders.draw, self.loaders.validation
            if drawn is not None and self.last:  # what is compared over the run is compared on the same images
                chosen = np.zeros(len(self.target), dtype=np.bool_)
                chosen[drawn] = True
                result = dataclasses.replace(result, on_draw=assess(share.among(chosen), self.ranks))
            elif drawn is not None:
                result = dataclasses.replace(result, of=len(self.target))
            if held_out is not None:
                result = dataclasses.replace(result, validation=assess(self._infer(held_out), self.ranks))
            return result

    def _infer(self, loader: Loader, look: Look | None = None) -> Inferred:
        return infer(self.network, loader, between=self.between, look=look, dtype=self.dtype)

    def _histogram(self, found: Evaluation) -> list[int]:
        """(C,) how many images were taken for each class."""
        histogram: list[int] = np.bincount(found.predictions, minlength=len(self.target.classes)).tolist()
        return histogram

    def verdict(self, final: Evaluation) -> list[Finding]:
        """What is known to be wrong with the final model, which was evaluated last."""
        before = self.before_metrics or {}
        covered = before.get("classes_in_effect")  # checkpoints of earlier versions have none
        held = sum(accuracy is not None for accuracy in final.per_class)
        return [
            *of_agreement(self.method.agreement()),
            *of_coverage(self._histogram(final), covered, self.method.partial),
            *of_accuracy(final.accuracy, final.mean_class_accuracy, before.get("accuracy"), held),
        ]

    def classes(self, final: Evaluation, verdict: Sequence[Finding] = ()) -> Classes:
        """What the target is made of, by the final model, which was evaluated last; as far as it can be told."""
        labels = self.target.labels[final.index] if self.target.labelled else None
        draw = None if final.on_draw is None else tally(self.step, final.on_draw)
        found = estimate(self.target.classes, self.tallies, labels, draw)
        return found.doubted(untold(self.method.agreement()), collapsed(verdict))

    def pseudo_labels(self) -> dict[str, dict[str, float | int | None]]:
        """What the method's labels of the last evaluation's sample are worth, by name, and the network's own. Labels of
        the target are compared with, after the method has given its own."""
        if self.sampled is None:
            return {}
        features, logits, truth, place = self.sampled
        given = {"network": (logits.argmax(1), logits.softmax(1).max(1).values)}
        if self.started:
            f, z, index = (part.to(self.device) for part in (features, logits, place))
            seen = Seen(f, z, index, self.network.classifier, self.plan.progress(self.step))
            given |= {name: (y.cpu(), sure.cpu()) for name, (y, sure) in self.method.pseudo_labels(seen).items()}
        classes = len(self.target.classes)
        return {name: quality(y, sure, truth, classes) for name, (y, sure) in given.items()}

    # --- checkpoints --------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """All that the trajectory depends on, and what a reader of the checkpoint needs. Every rank calls it."""
        return {
            "step": self.step,
            "seed": self.seed,
            "model": self.model.state_dict(),
            "statistics": self.ranks.gather(self._statistics()) if self.ranks.world > 1 else None,
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            "started": self.started,
            "before": self.before_metrics,
            "totals": {name: self.ranks.mean(total) for name, total in self.totals.items()},
            "counted": self.counted,
            "tallies": [one._asdict() for one in self.tallies],
            "rng": torch.get_rng_state(),
            "config": self.config.to_dict(),
            "classes": list(self.target.classes),
            "backbone": self.backbone,
        }

    def _record(self) -> Provenance:
        origin = self.domains.origin
        if origin is None:
            return record_of(self.config.network, self.network.backbone)
        return {"name": origin.backbone, "weights": origin.weights, "sha256": origin.weights_sha256}

    def _statistics(self) -> dict[str, Tensor]:
        """Batch-norm's running statistics, which are each rank's own: `model` holds rank 0's."""
        names = ("running_mean", "running_var", "num_batches_tracked")
        return {name: value.cpu() for name, value in self.network.named_buffers() if name.endswith(names)}

    def load(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint's state; ValueError says what does not fit."""
        try:
            self._refuse_another_run(state)
            self.model.load_state_dict(state["model"])
            if len(state["statistics"] or ()) == self.ranks.world:
                self.network.load_state_dict(state["statistics"][self.ranks.rank], strict=False)
            self.optimizer.load_state_dict(state["optimizer"])
            self.scaler.load_state_dict(state["scaler"])
            self.step, self.started, self.counted = state["step"], state["started"], state["counted"]
            self.before_metrics = state["before"]
            self.tallies = [Tally(**one) for one in state.get("tallies", ())]  # earlier versions kept none
            self.totals = {name: total.to(self.device) for name, total in state["totals"].items()}
            torch.set_rng_state(state["rng"])
            began = state.get("backbone")  # not in checkpoints of earlier versions
            self.other_start = other_start(began or {}, self.backbone)
            self.backbone = began or self.backbone
        except RuntimeError as error:  # other tensors than the network's
            first = " ".join(str(error).split())[:200]
            raise ValueError(f"the checkpoint is of another network: {first}. Choose another --out") from error
        except KeyError as error:
            raise ValueError(f"the checkpoint lacks {error}: it is not of this version of fastget") from error

    def _refuse_another_run(self, state: dict[str, Any]) -> None:
        classes = list(self.target.classes)
        if state["classes"] != classes:
            raise ValueError(
                f"the checkpoint is of another data set: it knows {len(state['classes'])} classes, "
                f"this one has {len(classes)} or names them otherwise. Choose another --out"
            )
        refuse_other_settings(state["config"], self.config)
