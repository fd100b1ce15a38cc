"""One seed's run: its model, optimizer and streams, and a step of training.

Nothing in a step waits for the device: losses are summed there, and the loop reads them at log intervals.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import nullcontext

import torch
from torch import Tensor

from fastget.bases.base import Losses, Step
from fastget.common.precision import autocast, choose_precision
from fastget.common.ranks import Ranks
from fastget.config import Config
from fastget.data.protocols import Domains
from fastget.evaluation.infer import Between, Watch, WholeTarget, nothing, unwatched
from fastget.evaluation.score import Evaluation
from fastget.methods.base import Seen
from fastget.networks.preprocessing import filled
from fastget.training.allocator import keep_freed_memory
from fastget.training.assess import Assessor
from fastget.training.build import Loaders, backbone_of, build_model, distributed, optimizer_of
from fastget.training.cost import Meter
from fastget.training.graph import Parts, graph_of
from fastget.training.optim import fill_momentum, forget_momentum
from fastget.training.schedule import make_plan, renews, set_lr, weight


class Engine:
    """Everything that one seed's run consists of. What it makes of the target is `assessor`'s, how it resumes from a
    checkpoint `fastget.training.resume`'s."""

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
        self.backbone = backbone_of(config, domains, self.network)  # as the run began with it
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
        self.assessor = Assessor(self.model, self.loaders, self.target, config.train.watch, self.ranks, self.dtype)
        self.plan = make_plan(config.train, type(self.method), self.loaders.epoch_steps)
        self.steps_done = 0
        self.started = False  # whether the method has: its first batch of the target was shown
        self.totals: dict[str, Tensor] = {}  # losses since the last log, on the device
        self.counted = 0  # steps in them

    @property
    def last(self) -> bool:
        """Whether the model is the final one, which is evaluated on the whole target."""
        return self.steps_done >= self.plan.max_steps

    def steps(self) -> Generator[Step, None, None]:
        """What is to be trained on, from the current step on."""
        plan, loaders = self.plan, self.loaders
        adapting = plan.warmup_steps if "target" in self.method.needs else plan.max_steps
        shown = 0 if "target" in self.model.needs else adapting
        unread = adapting if plan.source_free else plan.max_steps  # from this step on the source is not
        source = loaders.source.batches(self.steps_done) if self.steps_done < unread else None
        target = loaders.target.batches(max(self.steps_done, shown)) if shown < plan.max_steps else None
        shots = loaders.shots.batches(self.steps_done) if loaders.shots is not None else None
        try:
            for number in range(self.steps_done, plan.max_steps):
                progress = plan.progress(number)
                if source is not None and number >= unread:
                    source.close()
                    source = None
                yield Step(
                    source=None if source is None else next(source),
                    target=next(target) if target is not None and number >= shown else None,
                    shots=next(shots) if shots is not None else None,
                    weight=weight(self.config.method, progress),
                    progress=progress,
                    adapting=number >= adapting,
                    seed=self.seed,
                    number=number,
                )
        finally:
            for stream in (source, target, shots):
                if stream is not None:
                    stream.close()

    def train_step(self, step: Step, starting: Watch = unwatched) -> None:
        """The forward pass and the method's term, backward, the optimizer, then the method's memory. `starting` is
        around the passes over the target that the method may make before."""
        if step.adapting:
            self._start_method(starting)
        set_lr(self.optimizer, *self.plan.phase(self.steps_done), self.config.optim.decay, step.adapting)
        for parts in self.learn(step) if self.graph is None else self.graph(step):
            self._accumulate(parts)
        self.meter.count()
        self.counted += 1
        self.steps_done += 1

    def learn(self, step: Step) -> Parts:
        """All that a step does on the device; what is logged of it, for each of the optimizer's steps."""
        logged = []
        for part in self.model.parts(step):
            with self.timer.phase("own step") if part.source is not step.source else nullcontext():
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

    def _start_method(self, starting: Watch) -> None:
        """Before its first batch of the target, and at every epoch's or period's first, the method may look at all of
        it."""
        if self.started and not renews(self.method, self.plan, self.steps_done):
            return
        with starting() as between, self.timer.phase("evaluation"):
            loaders = self.loaders
            whole = WholeTarget(self.network, loaders.evaluation, loaders.whole_source, between, self.dtype)
            if not self.started:
                if self.plan.source_free:
                    forget_momentum(self.optimizer)
                self.method.start(whole)
            self.method.start_epoch(whole)
            if not self.started:
                self.assessor.start(whole, self.steps_done, look=bool(self.plan.warmup_steps), between=between)
        self.started = True

    def evaluate(self, between: Between = nothing) -> Evaluation:
        """The current model on the target, or on a draw of it before the last step."""
        with self.timer.phase("evaluation"):
            return self.assessor.evaluate(self.steps_done, self.last, between)

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
