"""A plan for people: the run in words, a table, what it assumes."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fastget.data.datasets import DATA_SETS
from fastget.planning import model, reading
from fastget.planning.predict import Planned, PlanRow

GIB = 2**30


def show(planned: Planned, assumptions: list[str], console: Console) -> None:
    """Prints all of it."""
    for line in heading(planned):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    console.print(table_of(planned))
    for line in [*remarks(planned), "", "assumptions:", *(f"- {one}" for one in assumptions)]:
        console.print(line, highlight=False, markup=False)


def heading(planned: Planned) -> list[str]:
    """What is planned, and what there is to do."""
    asked, passes = planned.asked, planned.passes
    config, sizes = asked.config, asked.sizes
    known = DATA_SETS.get(config.data.name)
    what = known.title if known else config.data.name
    labelled = f" and {sizes.labelled_target:,} labelled ones" if sizes.labelled_target else ""
    side = config.data.preprocessing.crop
    total = passes.total
    return [
        f"{what}, {config.data.setting}: {sizes.source:,} source images, {sizes.target:,} target images{labelled}, "
        f"{sizes.classes:,} classes",
        f"{config.title}, {config.network.name} at {side} pixels: {planned.counted.flops / 1e9:,.2f} GFLOP an image, "
        f"{planned.counted.parameters / 1e6:,.1f} M parameters, {passes.adapting.passes:,} image passes a "
        f"step of {config.train.batch_size} images a domain",
        f"{total:,} image passes: training {passes.training:,} ({passes.training / total:.0%}), the method's start "
        f"{passes.start:,} ({passes.start / total:.0%}), evaluation {passes.evaluation:,} "
        f"({passes.evaluation / total:.0%})",
    ]


def table_of(planned: Planned) -> Table:
    asked = planned.asked
    count = "CPUs" if not asked.machine.gpu else "GPUs"
    table = Table(title=escape(f"on {asked.card.title}, {'half' if asked.machine.half else 'single'} precision"),
                  title_justify="left")  # fmt: skip
    for name in (count, "batch", "steps", "images/s", "time", "bound by", "memory"):
        table.add_column(name, justify="left" if name == "bound by" else "right")
    for row in planned.rows:
        table.add_row(*cells(row, asked.card.memory))
    return table


def cells(row: PlanRow, room: float) -> list[str]:
    rate = f"{row.images_per_second:,.0f}" if row.images_per_second >= 100 else f"{row.images_per_second:.3g}"
    memory = f"{sum(row.memory.values()) / GIB:.1f} GiB" + ("" if row.fits else f" > {room / GIB:.0f}")
    bound = f"{row.bound} {row.parts[row.bound]:.0%}"
    return [f"{row.gpus}", f"{row.batch:,}", f"{row.steps:,}", rate, duration(3600 * row.hours), bound, memory]


def duration(seconds: float) -> str:
    """In the unit that suits it."""
    for unit, length in (("years", 31_557_600), ("days", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:,.1f} {unit}"
    return f"{seconds:,.1f} s"


def remarks(planned: Planned) -> list[str]:
    """Disk, memory, and what would help."""
    asked, first, cache = planned.asked, planned.rows[0], planned.cache
    sizes = ", ".join(f"{name} {amount(size)}" for name, size in cache.items())
    lines = [f"packed cache of {asked.sizes.stored:,} images: {sizes}"]
    last = planned.rows[-1]
    lines.append(f"the disk has to deliver {amount(first.disk_per_second)} a second, at {last.gpus} "
                 f"{amount(last.disk_per_second)}" if last is not first else
                 f"the disk has to deliver {amount(first.disk_per_second)} a second")  # fmt: skip
    parts = ", ".join(f"{name} {amount(size)}" for name, size in first.memory.items())
    lines.append(f"memory of the first row: {parts}")
    if not first.fits:
        lines.append("it does not fit: a smaller train.batch_size, data.crop or network")
    if asked.cache == "off" and any(row.bound == "decode" for row in planned.rows):
        lines.append("decoding bounds it: `fastget data pack` (here: --cache raw or --cache jpeg) takes it away")
    return lines


def amount(size: float) -> str:
    """Bytes in the unit that suits them."""
    for unit, length in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if size >= length:
            return f"{size / length:,.1f} {unit}"
    return f"{size / 1e3:,.1f} kB"


def assumptions(planned: Planned, measured: str) -> list[str]:
    """What the numbers stand on. `measured`: where a CPU's speed is from."""
    asked, machine = planned.asked, planned.asked.machine
    config, card = asked.config, asked.card
    stored = " and ".join(dict.fromkeys(f"{one.file} of {one.pixels / 1e6:.2f} megapixels" for one in asked.stored))
    read = f"packed {asked.cache} records" if asked.cache != "off" else f"files: {stored}"
    lines = [
        "an operation takes as long as the larger of its multiplications and its memory traffic; a backward pass two "
        "forward ones",
        f"images are read from {read}: {1000 * planned.reading.cpu:.2f} CPU-ms each, measured on another CPU "
        "(benchmarks/bench_loader.md)",
        f"an evaluation before the last is of {config.train.interim_images(asked.sizes.target):,} target images, the "
        "last of all; both in the run's number type",
        "a disk that keeps up, no start-up, no checkpoints; nobody else on the machine",
    ]
    if not machine.gpu:
        return [measured, *lines]
    share = f"{model.COMPUTE:.0%} of {(card.half if machine.half else card.single) / 1e12:,.0f} TFLOPS, "
    share += f"{model.TRAFFIC:.0%} of {card.bandwidth / 1e9:,.0f} GB/s, {1e6 * model.LAUNCH:.0f} us a launch"
    gpu = [
        f"{share}: fitted to published ResNet-50 speeds of A100, V100 and T4, within 8 %"
        + ("" if card.reach == 1 else f"; of that {card.reach:.0%} on this card, an estimate"),
        "never run on this card: H100's published speeds lie at 0.6 (eager, channels first) and 1.6 (MLPerf, fused) "
        "of the model's",
        f"the host needs {1e6 * model.HOST_OPERATION:.0f} us an operation and {1000 * model.HOST_STEP:.1f} ms a step, "
        "at the same time; no CUDA graphs",
        f"{machine.cores} CPU cores a GPU; the card decodes {card.jpeg:,.0f} JPEG images of {reading.OF_CARDS} "
        "megapixels a second, PNG is decoded by the CPU",
        f"{card.node} GPUs a node, {card.link / 1e9:,.0f} GB/s between them, {card.wire / 1e9:,.1f} GB/s a GPU between "
        f"nodes; {model.OVERLAP:.0%} of the backward pass hides the gradients' exchange",
        "the global batch is the same on any number of GPUs" if asked.fixed else
        f"the batch grows with the GPUs, {config.train.batch_size} images of a domain on each, in fewer steps: what "
        "that does to the accuracy is not told here",
    ]  # fmt: skip
    return [*gpu, *lines]
