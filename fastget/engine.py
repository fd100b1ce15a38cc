"""The training loop: warm-up on the source, the pass that starts the memory, then GeT's steps (METHOD.md).

Nothing in a step waits for the device: losses are summed there and read at log intervals.
"""

from __future__ import annotations

import math
import time
from collections.abc import Generator
from typing import Any

import torch
from torch import Tensor

from fastget.config import Config
from fastget.display import Display
from fastget.evaluation import Evaluation, evaluate, infer, score
from fastget.get import GeT
from fastget.lists import ImageList
from fastget.loaders import Batch, Loader, Stream
from fastget.model import Adaptation, Losses
from fastget.network import build_network
from fastget.runs import RunFolder
from fastget.sampling import EvalSampler, TrainSampler

EVAL_BATCH = 256


class RunFailed(RuntimeError):
    """A run that had to stop; the text says at which step, why, and what to try."""


class Engine:
    """Everything that one seed's run consists of."""

    def __init__(self, config: Config, seed: int, source: ImageList, target: ImageList, device: torch.device) -> None:
        self.config, self.seed, self.device = config, seed, device
        self.target = target
        torch.manual_seed(seed)
        network = build_network(config.network, len(source.classes), config.data.crop)
        self.model = Adaptation(network, self._build_get(len(source.classes)), config.optim.label_smoothing).to(device)
        self.network, self.get = self.model.network, self.model.get
        self.optimizer = self._build_optimizer()
        self.source_loader = self._train_loader(source, "source")
        self.target_loader = self._train_loader(target, "target")
        self.eval_loader = self._eval_loader(target)

        samplers = (self.source_loader.stream.sampler, self.target_loader.stream.sampler)
        self.epoch_steps = max(s.steps_per_epoch for s in samplers if isinstance(s, TrainSampler))
        train = config.train
        self.max_steps = train.max_steps or train.epochs * self.epoch_steps
        self.warmup_steps = round(0.3 * self.max_steps) if train.warmup_steps is None else train.warmup_steps
        self.eval_every = train.eval_every or max(1, self.max_steps // 10)
        self.checkpoint_every = train.checkpoint_every or self.eval_every
        if self.get is not None and self.warmup_steps >= self.max_steps:
            raise ValueError(
                f"train.warmup_steps ({self.warmup_steps}) leaves no step for GeT out of {self.max_steps}: "
                "lower it, or raise train.max_steps"
            )
        self.step = 0  # steps done
        self.before: dict[str, Any] | None = None  # the source-only model at the end of the warm-up, once it is reached
        self.totals: dict[str, Tensor] = {}  # losses since the last log, on the device
        self.counted = 0  # steps in them

    # --- parts --------------------------------------------------------------------------------

    def _build_get(self, num_classes: int) -> GeT | None:
        if self.config.method.name == "source-only":
            return None
        get = self.config.get
        return GeT(
            num_classes,
            self.config.network.bottleneck_dim,
            tau=get.tau,
            gamma_mu=get.gamma_mu,
            gamma_pi=get.gamma_pi,
            gamma_Q=get.gamma_Q,
            prior_estimate=get.prior_estimate,
            prior_shrinkage=get.prior_shrinkage,
            prototype_labels=get.prototype_labels,
            kl_g=get.kl_g,
            kl_f=get.kl_f,
            mix=get.mix,
            backend=get.backend,
        )

    def _build_optimizer(self) -> torch.optim.Optimizer:
        optim = self.config.optim
        backbone = list(self.network.backbone.parameters())
        ids = {id(p) for p in backbone}
        heads = [p for p in self.model.parameters() if id(p) not in ids]
        groups = [
            {"params": backbone, "base_lr": optim.lr * optim.backbone_lr_scale},
            {"params": heads, "base_lr": optim.lr},
        ]
        return torch.optim.SGD(
            groups, lr=optim.lr, momentum=optim.momentum, nesterov=optim.nesterov, weight_decay=optim.weight_decay
        )

    def _train_loader(self, images: ImageList, stream: str) -> Loader:
        data = self.config.data
        sampler = TrainSampler(
            len(images),
            self.config.train.batch_size,
            seed=self.seed,
            stream=stream,
            margin=data.resize - data.crop,
            flip=data.flip,
        )
        return Loader(Stream(images, sampler, data.resize, data.crop), self.device, data.loader, data.workers)

    def _eval_loader(self, images: ImageList) -> Loader:
        data = self.config.data
        sampler = EvalSampler(len(images), EVAL_BATCH, margin=data.resize - data.crop)
        return Loader(Stream(images, sampler, data.resize, data.crop), self.device, data.loader, data.workers)

    # --- the run ------------------------------------------------------------------------------

    def fit(self, run: RunFolder, display: Display) -> Evaluation:
        """From the current step to the last; the evaluation of the final model."""
        source, target = self.source_loader.batches(self.step), self._target_batches()
        clock = _Clock()
        final: Evaluation | None = None
        self.model.train()
        while self.step < self.max_steps:
            with clock.waiting():
                source_batch, target_batch = next(source), next(target)
            self._accumulate(self._train_step(source_batch, target_batch))
            self.step += 1
            clock.images += len(source_batch.labels) + (len(target_batch.labels) if target_batch else 0)
            last = self.step == self.max_steps
            if last or self.step % self.config.train.log_every == 0:
                self._log(run, display, clock)
            if last or self.step % self.eval_every == 0:
                with clock.paused():
                    final = evaluate(self.network, self.eval_loader)
                run.log(step=self.step, **final.metrics())
                display.evaluated(self.step, final)
            if last or self.step % self.checkpoint_every == 0:
                with clock.paused():
                    self._save(run, display)
        source.close()
        target.close()
        return final if final is not None else evaluate(self.network, self.eval_loader)

    def _target_batches(self) -> Generator[Batch | None, None, None]:
        """None in the warm-up and for source-only, then the target's batches."""
        first = self.warmup_steps if self.get is not None else self.max_steps
        for _ in range(self.step, first):
            yield None
        if self.get is not None:
            yield from self.target_loader.batches(max(self.step, first))

    def _train_step(self, source: Batch, target: Batch | None) -> Losses:
        """E, C and M, then the memory's update from the same features."""
        if self.get is not None and target is not None:
            if self.before is None:
                self._start_memory(self.get)
            if self.step % self.epoch_steps == 0:
                self.get.start_epoch()
        self._set_lr()
        try:
            losses: Losses = self.model(source.images, source.labels, target.images if target else None, self._weight())
        except ValueError as error:  # GeT refuses non-finite features
            raise RunFailed(f"step {self.step}: {error}") from error
        self.optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(losses.loss)
        self.optimizer.step()
        if self.get is not None and losses.out is not None and losses.features is not None:
            self.get.update(losses.features, losses.out)
        return losses

    def _start_memory(self, get: GeT) -> None:
        """One pass over the target sets mu to the mean feature of the images predicted as each class."""
        features, logits, labels = infer(self.network, self.eval_loader)
        confidence, predictions = logits.softmax(1).max(1)
        get.initialise(features, predictions, self.network.classifier.weight)
        get.start_epoch()
        before = score(predictions, confidence, labels, logits.shape[1])
        self.before = {"step": self.step, **before.metrics()}

    def _set_lr(self) -> None:
        """lr(i) = lr0 * (1 + 10 i / I)^-0.75."""
        factor = (1 + 10 * self.step / self.max_steps) ** -0.75
        for group in self.optimizer.param_groups:
            group["lr"] = group["base_lr"] * factor

    def _weight(self) -> float:
        """w(t)."""
        method = self.config.method
        return method.weight * (self.step / self.max_steps if method.ramp == "linear" else 1)

    # --- logging and checkpoints --------------------------------------------------------------

    def _accumulate(self, losses: Losses) -> None:
        for name, value in losses.parts().items():
            self.totals[name] = self.totals[name] + value if name in self.totals else value
        self.counted += 1

    def _log(self, run: RunFolder, display: Display, clock: _Clock) -> None:
        """The means since the last log line. The one place in the loop that waits for the device."""
        means = {name: float(total) / self.counted for name, total in self.totals.items()}
        if self.get is not None:
            try:
                self.get.check()
            except ValueError as error:
                raise RunFailed(str(error)) from error
        if not math.isfinite(means["loss"]):
            before = run.checkpoints.steps()
            raise RunFailed(
                f"the loss became {means['loss']} between steps {self.step - self.counted} and {self.step}. "
                f"The last good checkpoint is {before[0] if before else 'none yet'}. "
                "Try a lower optim.lr, a longer train.warmup_steps, or a higher get.tau"
            )
        lr = self.optimizer.param_groups[-1]["lr"]
        epoch = self.step / self.epoch_steps
        run.log(step=self.step, epoch=round(epoch, 4), **means, lr=lr, **clock.read())
        display.logged(self.step, means, clock.read())
        self.totals, self.counted = {}, 0

    def state(self) -> dict[str, Any]:
        """All that the trajectory depends on, and what a reader of the checkpoint needs."""
        return {
            "step": self.step,
            "seed": self.seed,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "before": self.before,
            "totals": self.totals,
            "counted": self.counted,
            "rng": torch.get_rng_state(),
            "config": self.config.to_dict(),
            "classes": list(self.target.classes),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint's state."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step, self.before, self.counted = state["step"], state["before"], state["counted"]
        self.totals = {name: total.to(self.device) for name, total in state["totals"].items()}
        torch.set_rng_state(state["rng"])

    def _save(self, run: RunFolder, display: Display) -> None:
        try:
            run.checkpoints.save(self.step, self.state())
        except OSError as error:
            display.warn(
                f"cannot save the checkpoint of step {self.step} ({error.strerror}): the one before it is kept"
            )


class _Clock:
    """Images per second as total images over total time, evaluations and checkpoints left out."""

    def __init__(self) -> None:
        self.images = 0
        self._start = time.perf_counter()
        self._out = 0.0
        self._waited = 0.0

    def read(self) -> dict[str, float]:
        elapsed = time.perf_counter() - self._start - self._out
        return {"images_per_second": round(self.images / elapsed, 2), "data_wait": round(self._waited / elapsed, 4)}

    def paused(self) -> _Span:
        return _Span(self, "_out")

    def waiting(self) -> _Span:
        return _Span(self, "_waited")


class _Span:
    def __init__(self, clock: _Clock, name: str) -> None:
        self.clock, self.name = clock, name

    def __enter__(self) -> None:
        self.began = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        setattr(self.clock, self.name, getattr(self.clock, self.name) + time.perf_counter() - self.began)
