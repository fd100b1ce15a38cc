"""One seed's run: its network, GeT, optimizer and streams, and a step of training (METHOD.md, Eq. (11)).

Nothing in a step waits for the device: losses are summed there, and the loop reads them at log intervals.
"""

from __future__ import annotations

import inspect
from collections.abc import Generator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from fastget.bases.plain import Adaptation, Losses
from fastget.common.precision import choose_precision
from fastget.common.ranks import Ranks
from fastget.config import Config
from fastget.data.find import Domains
from fastget.evaluation.score import Evaluation, assess, evaluate, infer
from fastget.loading.loader import Batch, Loader, Stream
from fastget.loading.sampling import EvalSampler, TrainSampler
from fastget.methods.get import GeT
from fastget.networks.network import build_network
from fastget.training.optim import build_optimizer, set_lr
from fastget.training.profiling import phase

EVAL_BATCH = 256
# settings that the trajectory does not depend on: they may differ when a run goes on
FREE = {
    "data.root", "data.workers", "data.cache", "data.bad_threshold", "train.out", "train.resume", "train.device",
    "train.tensorboard", "train.profile",
    "train.keep_checkpoints", "train.log_every", "train.eval_every", "train.checkpoint_every", "train.select",
}  # fmt: skip

# batch-norm statistics stay each rank's own, GeT's memory is the same on all; the option has two names
_NEW = "forward_sync_buffers" in inspect.signature(DistributedDataParallel.__init__).parameters
_WITHOUT_BUFFERS: dict[str, Any] = {"forward_sync_buffers" if _NEW else "broadcast_buffers": False}


class Batches(NamedTuple):
    """What a step trains on."""

    source: Batch
    target: Batch | None  # none in the warm-up, nor for source-only
    shots: Batch | None  # SSDA's labelled target images

    @property
    def given(self) -> list[Batch]:
        return [batch for batch in self if batch is not None]


class RunFailed(RuntimeError):
    """A run that had to stop; the text says at which step, why, and what to try."""


def refuse_other_settings(stored: dict[str, dict[str, Any]], config: Config) -> None:
    """ValueError if a run's stored configuration leads elsewhere than this one."""
    mine = config.to_dict()
    differing = [
        f"{section}.{name} ({theirs!r} there, {mine[section].get(name)!r} here)"
        for section, fields in stored.items()
        for name, theirs in fields.items()
        if f"{section}.{name}" not in FREE and mine[section].get(name) != theirs
    ]
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
    ) -> None:
        self.config, self.seed, self.device, self.ranks = config, seed, device, ranks or Ranks()
        self.domains, self.target = domains, domains.target
        self.dtype = choose_precision(config.train.precision, device, config.train.force_precision)
        torch.manual_seed(seed)
        self._build_model(len(domains.source.classes))
        self.scaler = torch.amp.GradScaler(device.type, enabled=self.dtype == torch.float16)
        batch = config.train.batch_size
        labelled = 0 if domains.labelled_target is None else max(1, batch // 3)  # 36 = 24 + 12, as in the paper
        if labelled >= batch:
            raise ValueError(f"data.setting=ssda needs a train.batch_size of at least 2, got {batch}")
        self.source_loader = self._train_loader("source", batch)
        self.target_loader = self._train_loader("target", batch - labelled)
        self.shots_loader = self._train_loader("labelled_target", labelled) if labelled else None
        self.eval_loader = self._eval_loader()
        self._plan()
        self.step = 0  # steps done
        self.before_metrics: dict[str, Any] | None = None  # of the model at the end of the warm-up, once it is reached
        self.totals: dict[str, Tensor] = {}  # losses since the last log, on the device
        self.counted = 0  # steps in them

    # --- parts --------------------------------------------------------------------------------

    def _build_model(self, num_classes: int) -> None:
        config, device = self.config, self.device
        network = build_network(config.network, num_classes, config.data.crop)
        model = Adaptation(network, self._build_get(num_classes), config.optim.label_smoothing)
        if config.train.sync_batchnorm and self.ranks.world > 1:
            if device.type != "cuda":
                raise ValueError("train.sync_batchnorm needs CUDA devices: torch cannot synchronise batch-norm on CPUs")
            model = nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.model: Adaptation = model.to(device)
        self.network, self.get = self.model.network, self.model.get
        if device.type == "cuda":
            self.network.to(memory_format=torch.channels_last)
        if config.train.compile:
            self.network.compile()
        backbone = list(self.network.backbone.parameters())
        ids = {id(p) for p in backbone}
        heads = [p for p in self.model.parameters() if id(p) not in ids]
        self.optimizer = build_optimizer(config.optim, backbone, heads, device)
        self.step_model: nn.Module = self.model
        if self.ranks.world > 1:
            devices = [device.index] if device.type == "cuda" else None
            self.step_model = DistributedDataParallel(self.model, devices, **_WITHOUT_BUFFERS)

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
            check_now=False,
        )

    def _train_loader(self, role: str, batch_size: int) -> Loader:
        data = self.config.data
        sampler = TrainSampler(
            len(self.domains.lists()[role]),
            batch_size,
            seed=self.seed,
            stream=role,
            margin=data.resize - data.crop,
            flip=data.flip,
            rank=self.ranks.rank,
            world=self.ranks.world,
        )
        return self._loader(role, sampler)

    def _eval_loader(self) -> Loader:
        data, ranks = self.config.data, self.ranks
        margin = data.resize - data.crop
        sampler = EvalSampler(len(self.target), EVAL_BATCH, margin=margin, rank=ranks.rank, world=ranks.world)
        return self._loader("target", sampler)

    def _loader(self, role: str, sampler: TrainSampler | EvalSampler) -> Loader:
        data, domains = self.config.data, self.domains
        stream = Stream(
            domains.lists()[role], sampler, data.resize, data.crop, domains.packed.get(role), data.bad_threshold
        )
        return Loader(stream, self.device, data.loader, data.workers)

    def _plan(self) -> None:
        """The run's length and intervals in steps."""
        train = self.config.train
        samplers = (self.source_loader.stream.sampler, self.target_loader.stream.sampler)
        self.epoch_steps = max(s.steps_per_epoch for s in samplers if isinstance(s, TrainSampler))
        self.max_steps = train.max_steps or train.epochs * self.epoch_steps
        self.warmup_steps = round(0.3 * self.max_steps) if train.warmup_steps is None else train.warmup_steps
        self.eval_every = train.eval_every or max(1, self.max_steps // 10)
        self.checkpoint_every = train.checkpoint_every or self.eval_every
        if self.get is not None and self.warmup_steps >= self.max_steps:
            raise ValueError(
                f"train.warmup_steps ({self.warmup_steps}) leaves no step for GeT out of {self.max_steps}: "
                "lower it, or raise train.max_steps"
            )

    # --- a step -------------------------------------------------------------------------------

    def batches(self) -> Generator[Batches, None, None]:
        """The batches of each step from the current one on."""
        first = self.warmup_steps if self.get is not None else self.max_steps
        source = self.source_loader.batches(self.step)
        target = self.target_loader.batches(max(self.step, first)) if self.get is not None else None
        shots = self.shots_loader.batches(self.step) if self.shots_loader is not None else None
        try:
            for step in range(self.step, self.max_steps):
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
        """E, C and M, then the memory's update from the same features."""
        source, target, shots = batches
        if self.get is not None and target is not None:
            if self.before_metrics is None:
                self._start_memory(self.get)
            if self.step % self.epoch_steps == 0:
                self.get.start_epoch()
        set_lr(self.optimizer, self.step, self.max_steps)
        with torch.autocast(self.device.type, self.dtype, enabled=self.dtype != torch.float32):
            losses: Losses = self.step_model(
                source.images,
                source.labels,
                None if target is None else target.images,
                None if shots is None else shots.images,
                None if shots is None else shots.labels,
                self._weight(),
            )
        with phase("backward"):
            self.optimizer.zero_grad(set_to_none=True)
            torch.autograd.backward(self.scaler.scale(losses.loss))
        with phase("optimizer"):
            overflow = self._optimizer_step()
        if self.get is not None and losses.out is not None and losses.features is not None:
            with phase("memory"):
                self.get.update(losses.features, losses.out, skip=overflow)
        self._accumulate(losses)
        self.step += 1

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

    def _start_memory(self, get: GeT) -> None:
        """One pass over the target sets mu to the mean feature of the images predicted as each class."""
        with phase("evaluation"):
            share = infer(self.network, self.eval_loader, keep_features=True)
            predictions = torch.split(share.logits.argmax(1), [len(f) for f in share.features])
            get.initialise(share.features, predictions, self.network.classifier.weight)
            get.start_epoch()
            self.before_metrics = {"step": self.step, **assess(share, self.ranks).metrics()}

    def _weight(self) -> float:
        """w(t)."""
        method = self.config.method
        return method.weight * (self.step / self.max_steps if method.ramp == "linear" else 1)

    def _accumulate(self, losses: Losses) -> None:
        for name, value in losses.parts().items():
            self.totals[name] = self.totals[name] + value if name in self.totals else value
        self.counted += 1

    def read_means(self) -> dict[str, float]:
        """The mean losses since the last call, over all ranks. Waits for the device."""
        means = {name: float(self.ranks.mean(total)) / self.counted for name, total in self.totals.items()}
        self.totals, self.counted = {}, 0
        return means

    def finite(self) -> bool:
        """Whether all parameters and buffers are. Waits for the device."""
        sums = [tensor.float().sum() for tensor in self.model.state_dict().values() if tensor.numel()]
        return bool(torch.isfinite(torch.stack(sums)).all())

    def evaluate(self) -> Evaluation:
        """The current model on the target."""
        with phase("evaluation"):
            return evaluate(self.network, self.eval_loader, self.ranks)

    # --- checkpoints --------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """All that the trajectory depends on, and what a reader of the checkpoint needs. Every rank calls it."""
        return {
            "step": self.step,
            "seed": self.seed,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            "before": self.before_metrics,
            "totals": {name: self.ranks.mean(total) for name, total in self.totals.items()},
            "counted": self.counted,
            "rng": torch.get_rng_state(),
            "config": self.config.to_dict(),
            "classes": list(self.target.classes),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint's state; ValueError says what does not fit."""
        try:
            self._refuse_another_run(state)
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.scaler.load_state_dict(state["scaler"])
            self.step, self.before_metrics, self.counted = state["step"], state["before"], state["counted"]
            self.totals = {name: total.to(self.device) for name, total in state["totals"].items()}
            torch.set_rng_state(state["rng"])
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
