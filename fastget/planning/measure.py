"""The model set right by this machine: a few steps of the very run on random images, and a few images decoded.

What is kept, in the user's cache directory, is the measured time over the model's, by machine, torch and network.
"""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import statistics
import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs
import torch
from PIL import Image

from fastget.common.files import write_atomically
from fastget.config import Config
from fastget.data.lists import ImageList
from fastget.data.protocols import Domains
from fastget.loading.loader import Loader
from fastget.loading.sampling import EvalSampler
from fastget.loading.stream import Stream
from fastget.networks.flops import count_network
from fastget.planning.cards import CPU, PlanCard
from fastget.planning.counts import method_without_content
from fastget.planning.model import AS_MODELLED, Load, PlanMachine, Slower, kept_by, looking_seconds, step_seconds
from fastget.planning.reading import Reading, Stored, reading
from fastget.training.engine import Engine
from fastget.training.passes import kind_of

FILE = "plan.json"
CORE_FLOPS, CORE_BANDWIDTH = 125e9, 18e9  # of a core, where nothing is measured: float32, of an AVX-512 server's
LONGEST = 4.0  # seconds of a step, by the model, that is measured whole; else of a smaller batch
STEPS, LEAST = 4, 4  # steps that are timed, and the least batch
LONG = 10**6  # steps of the run that they begin: a method that looks at the target now and then does so before them
DECODED, DECODING = 12, 0.3  # images that are made, and seconds of reading them


def cpu_card() -> PlanCard:
    """This machine's CPU, at the speed of a usual one."""
    cores = os.cpu_count() or 1
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return PlanCard(name=CPU, title=f"this machine's CPU, {cores} cores", half=CORE_FLOPS * cores,
                single=CORE_FLOPS * cores, bandwidth=CORE_BANDWIDTH * cores, memory=memory, link=1e9, node=1,
                wire=1e9, jpeg=1.0)  # fmt: skip


def cpu_machine(config: Config, slower: Slower = AS_MODELLED) -> PlanMachine:
    """A run here, without a GPU."""
    card, cores = cpu_card(), os.cpu_count() or 1
    threads = min(cores, config.train.threads or cores)
    share = threads / cores
    card = dataclasses.replace(card, single=card.single * share, half=card.half * share,
                               bandwidth=card.bandwidth * share)  # fmt: skip
    return PlanMachine(card, False, cores, gpu=False, threads=threads, slower=slower)


# --- what was measured before --------------------------------------------------------------------


def machine_key() -> str:
    """Another machine or torch is measured anew."""
    return f"{_model()}, {platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}"


def _model() -> str:
    file = Path("/proc/cpuinfo")
    lines = file.read_text().splitlines() if file.is_file() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def network_key(config: Config) -> str:
    return f"{config.network.name} at {config.data.preprocessing.crop}, {config.train.threads or 'all'} threads"


def remembered(config: Config) -> tuple[Slower, str] | None:
    """Of this network, or of another one on this machine, and which; None if nothing was measured here."""
    found = _read().get(machine_key(), {})
    name = network_key(config)
    name = name if name in found else next(reversed(found), "")
    return (Slower(**found[name]), name) if name else None


def _place() -> Path:
    return Path(platformdirs.user_cache_dir("fastget")) / FILE


def _read() -> dict[str, dict[str, dict[str, float]]]:
    """What cannot be read was never measured."""
    try:
        found = json.loads(_place().read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _remember(config: Config, slower: Slower) -> None:
    kept = _read()
    here = kept.setdefault(machine_key(), {})
    here.pop(network_key(config), None)
    here[network_key(config)] = dataclasses.asdict(slower)
    _place().parent.mkdir(parents=True, exist_ok=True)
    write_atomically(_place(), json.dumps(kept, indent=1).encode())


# --- measuring -----------------------------------------------------------------------------------


def measure(config: Config, classes: int, stored: tuple[Stored, Stored]) -> Slower:
    """Some seconds of work on this machine's CPU; kept for later plans."""
    machine = cpu_machine(config)
    threads = torch.get_num_threads()
    torch.set_num_threads(machine.threads)
    try:
        slower = dataclasses.replace(_measure_steps(config, classes, machine), reading=_measure_reading(config, stored))
    finally:
        torch.set_num_threads(threads)
    _remember(config, slower)
    return slower


def _measure_steps(config: Config, classes: int, machine: PlanMachine) -> Slower:
    """Steps of the run, after the warm-up, on random images that cost nothing to make."""
    counted = count_network(config.network, classes, config.data.preprocessing.crop)
    assert counted is not None, "the caller has counted it"
    batch = config.train.batch_size
    whole = kind_of(config, method_without_content(config, classes, batch), config.data.setting == "ssda")
    load = Load(counted, kept_by(config, classes, batch, 1), Reading(0.0, 0.0, 0.0))
    expected = step_seconds(load, whole, 1.0, machine, 1).seconds
    if expected > LONGEST:
        batch = min(batch, max(LEAST, round(batch * LONGEST / expected)))
    short = _short(config, batch)
    engine = Engine(short, 0, nameless(short, classes, 2 * batch), torch.device("cpu"))
    training = _timed_steps(engine)
    start = _clock()
    engine.evaluate()
    looked = (_clock() - start) / len(engine.target)
    scale = batch / config.train.batch_size
    modelled = step_seconds(load, whole, scale, machine, 1).network
    size = min(len(engine.target), engine.loaders.evaluation.stream.sampler.batch_size)
    return Slower(training / modelled, looked * size / looking_seconds(load, size, machine).network)


def _clock() -> float:
    """Seconds. Of one thread those of the CPU, which are the same whoever else is on the machine."""
    return time.process_time() if torch.get_num_threads() == 1 else time.perf_counter()


def _timed_steps(engine: Engine) -> float:
    """Seconds of one: the median, after the first."""
    engine.model.train()
    steps, times = engine.steps(), []
    try:
        for step in islice(steps, 1 + STEPS):
            start = _clock()
            engine.train_step(step)
            engine.read_means()  # waits for the device
            times.append(_clock() - start)
    finally:
        steps.close()
    return statistics.median(times[1:])


def _short(config: Config, batch: int) -> Config:
    changes: dict[str, Any] = {"batch_size": batch, "device": "cpu", "precision": "float32", "max_steps": LONG,
                               "warmup_steps": 0, "watch": 0}  # fmt: skip
    return dataclasses.replace(
        config,
        train=dataclasses.replace(config.train, **changes),
        data=dataclasses.replace(config.data, loader="synthetic"),
        network=dataclasses.replace(config.network, weights="none"),
    )


def nameless(config: Config, classes: int, images: int) -> Domains:
    """Two domains, of names of images that nobody opens."""
    names = tuple(f"class {c}" for c in range(classes))

    def made(role: str, size: int) -> ImageList:
        return ImageList(role, Path(), [str(i) for i in range(size)], np.arange(size) % classes, names)

    shots = made("labelled_target", max(images // 2, classes)) if config.data.setting == "ssda" else None
    return Domains(made("source", images + 1), made("target", images), shots)


def _measure_reading(config: Config, stored: tuple[Stored, Stored]) -> float:
    """CPU-seconds of the run's own loader on files of the source's size and type."""
    one, made = stored[0], config.data.preprocessing
    modelled = reading(config, (one,), "off", None).cpu
    count = max(2 * DECODED, min(40 * DECODED, round(DECODING / modelled)))  # so that making the loader is nothing
    with tempfile.TemporaryDirectory(prefix="fastget-plan-") as folder:
        for number in range(DECODED):
            picture(one, number).save(Path(folder) / f"{number}.{one.file}", quality=90)
        names = [f"{number % DECODED}.{one.file}" for number in range(count)]
        images = ImageList("measured", Path(folder), names, np.zeros(count, dtype=np.int64), ("picture",))
        stream = Stream(images, EvalSampler(count, 4 * DECODED, margin=made.margin), made)
        spent = []
        for _ in range(2):  # the first reads the files from disk
            start = time.process_time()
            for _ in Loader(stream, torch.device("cpu"), "torchvision", workers=1).batches():
                continue
            spent.append(time.process_time() - start)
    return min(spent) / count / modelled


def picture(stored: Stored, number: int) -> Image.Image:
    """Smooth, with some noise: it compresses about as a photograph does."""
    side = max(8, round(stored.pixels**0.5))
    random = np.random.default_rng(number)
    small = Image.fromarray(random.integers(0, 255, (side // 8, side // 8, 3), dtype=np.uint8))
    smooth = np.asarray(small.resize((side, side), Image.Resampling.BICUBIC)).astype(np.int16)
    return Image.fromarray(np.clip(smooth + random.integers(-4, 5, smooth.shape), 0, 255).astype(np.uint8))
