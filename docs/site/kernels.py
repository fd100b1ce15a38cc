"""The pictures of docs/kernels.md, drawn from the launches of one GeT step as they are counted:

    TRITON_INTERPRET=1 python docs/site/kernels.py        # writes docs/images/kernels/*.svg

What a launch reads and writes, how many programs it has, and what tile each of them owns is asked of the launch itself;
tests/documents/test_pictures.py draws them again and compares.
"""

from __future__ import annotations

import os
import sys
from math import ceil, prod
from pathlib import Path

os.environ.setdefault("TRITON_INTERPRET", "1")  # before triton is imported
sys.path.insert(0, str(Path(__file__).parent))

from svg import Pen
from torch import Tensor

from fastget.kernels.audit import traffic
from fastget.kernels.audit.step import launches_of
from fastget.kernels.launch import Launch

B, C, D = 36, 65, 256  # Office-Home: the paper's batch, 65 classes, the bottleneck's width
LARGE = (256, 345, 2048)  # of the strip: where bytes begin to count beside the launches
OUT = Path(__file__).resolve().parents[1] / "images" / "kernels"
PHASES = {"logits": "E", "statistics": "E", "objective": "C", "totals": "C", "backward": "M", "memory": "memory"}
DOES = {
    "logits": "three posteriors' logits from one read of the features: Eq. (2)",
    "statistics": "column sums, class sums, the prior's estimate, y_M: what ranks add up",
    "objective": "rebalanced labels (6), (10) and both heads' losses (11), row by row",
    "totals": "the mean of what the rows gave",
    "backward": "the gradient to the features, to W and to mu_f",
    "memory": "the prototypes by (4), the prior by (3), and what the next step takes of it",
}
WORDS = {"prior": "pi", "mu_g": "W", "d_mu_g": "dW", "d_mu_f": "dmu_f", "d_features": "dfeatures"}


def stem(launch: Launch) -> str:
    return launch.name.removesuffix("_kernel")


def called(launch: Launch, tensor: Tensor) -> str:
    """A tensor's name, as the kernel's arguments have it and METHOD.md writes it."""
    for name, value in zip(launch.kernel.arg_names, launch.args, strict=False):
        if isinstance(value, Tensor) and value.data_ptr() == tensor.data_ptr() and value.shape == tensor.shape:
            return WORDS.get(name, name)
    raise ValueError(f"{launch.name} has no argument of shape {tuple(tensor.shape)}")


def size_of(tensor: Tensor) -> str:
    number = tensor.numel() * tensor.element_size()
    return f"{number / 1024:.0f} KB" if number >= 1000 else f"{number} B"


def programs(launch: Launch) -> int:
    return prod(launch.grid)


# --- all six ------------------------------------------------------------------------------------


def chips(pen: Pen, launch: Launch, tensors: tuple[Tensor, ...], x: float, y: float, width: float,
          owner: dict[int, int], colour: str) -> float:  # fmt: skip
    """Tensors as boxes in rows; one that an earlier launch wrote wears its number. Returns the height."""
    left, top = x, y
    for tensor in sorted(tensors, key=lambda t: -t.numel()):
        words = f"{called(launch, tensor)}  {size_of(tensor)}"
        made = owner.get(tensor.data_ptr())
        need = 6.6 * len(words) + 14 + (18 if made else 0)
        if left + need > x + width:
            left, top = x, top + 26
        pen.rect(left, top, need, 21, fill="fill", stroke=colour if tensor.numel() > B * C else "line", r=5)
        pen.text(left + 7, top + 14.5, words, 11, mono=True)
        if made:
            pen.circle(left + need - 13, top + 10.5, 7.5, "soft")
            pen.text(left + need - 13, top + 14, str(made), 10, "white", bold=True, anchor="middle")
        left += need + 6
    return top + 21 - y


def draw_step(made: list[Launch]) -> Pen:
    """A card a launch: what it does, what it reads, what it writes."""
    pen = Pen(760, 1000, "The six launches of a GeT step, what each reads and writes")
    owner: dict[int, int] = {}
    y = 14.0
    for number, launch in enumerate(made, 1):
        colour = PHASES[stem(launch)]
        begin = y
        pen.circle(38, y + 25, 15, colour)
        pen.text(38, y + 30, str(number), 15, "white", bold=True, anchor="middle")
        pen.text(66, y + 22, stem(launch), 16, colour, bold=True)
        kind = "program" if programs(launch) == 1 else "programs"
        pen.text(736, y + 22, f"{programs(launch)} {kind}, {launch.bytes / 1024:,.0f} KB", 12, "soft", anchor="end")
        pen.text(66, y + 40, DOES[stem(launch)], 12, "soft")
        y += 50
        for words, tensors in (("reads", launch.reads), ("writes", launch.writes)):
            pen.text(66, y + 15, words, 11.5, "soft")
            y += chips(pen, launch, tensors, 112, y, 624, owner, colour) + 7
        owner.update({tensor.data_ptr(): number for tensor in launch.writes})
        y += 5
        pen.rect(14, begin, 732, y - begin, stroke="line", r=8)
        if number < len(made):
            pen.line((38, y), (38, y + 16), arrow=True)
            if number == 2:
                pen.text(66, y + 13, "many GPUs: one all-reduce of what 2 wrote, but y_M", 11, "soft")
        y += 18
    pen.height = y - 4
    return pen


# --- the strip ----------------------------------------------------------------------------------


def draw_strip() -> Pen:
    """What an A100 cannot do faster: 4 us a launch, or its bytes; operator by operator, launch by launch."""
    gpu = traffic.A100
    eager, fused = traffic.eager_step(*LARGE), traffic.fused_step(*LARGE)
    title = f"The floor of a step on an A100: {eager.launches} operators of eager PyTorch, {fused.launches} launches"
    pen = Pen(760, 240, title)

    def floors(transfers: tuple[int, ...]) -> list[float]:
        return [1e6 * gpu.seconds((size,), traffic.LATENCY) for size in transfers]

    slow, quick = floors(eager.transfers), floors(fused.transfers)
    scale = 724 / sum(slow)
    pen.text(18, 28, f"eager PyTorch: {eager.launches} operators, {sum(slow):,.0f} us", 13, bold=True)
    x = 18.0
    for time in slow:
        bound = time > 1e6 * traffic.LATENCY * 1.001
        pen.rect(x, 40, max(time * scale - 0.7, 0.6), 34, fill="M" if bound else "soft", opacity=1 if bound else 0.55)
        x += time * scale
    pen.text(18, 106, f"fused: {fused.launches} launches, {sum(quick):,.0f} us", 13, bold=True)
    x = 18.0
    for time, name in zip(quick, fused.names, strict=True):
        pen.rect(x, 118, time * scale - 0.7, 34, fill=PHASES[name.removesuffix("_kernel")])
        x += time * scale
    pen.line((x + 4, 135), (70, 135), (70, 176), arrow=True)
    zoom, x = 500 / sum(quick), 90.0
    for time, name in zip(quick, fused.names, strict=True):
        short = name.removesuffix("_kernel")
        pen.rect(x, 164, time * zoom - 2, 26, fill=PHASES[short], r=3)
        if time * zoom > 6.4 * len(short):
            pen.text(x + (time * zoom - 2) / 2, 181, short, 11, "white", bold=True, anchor="middle")
        x += time * zoom
    pen.text(x + 8, 181, "the same, enlarged", 11, "soft")
    pen.rect(18, 208, 11, 11, fill="soft", opacity=0.55)
    pen.text(34, 218, f"bound by the launch, {1e6 * traffic.LATENCY:g} us", 11.5, "soft")
    pen.rect(208, 208, 11, 11, fill="M")
    batch, classes, width = LARGE
    size = f"batch {batch}, {classes} classes, width {width:,}"
    pen.text(224, 218, f"bound by bytes at {gpu.bandwidth / 1e9:,.0f} GB/s; {size}", 11.5, "soft")
    return pen


# --- who owns what ------------------------------------------------------------------------------


def matrix(pen: Pen, x: float, y: float, rows: int, columns: int, name: str, colour: str, tile: tuple[int, int],
           at: tuple[int, int], sweep: str = "", wide: float = 0.72, tall: float = 1.5) -> float:  # fmt: skip
    """A tensor to scale, cut into tiles, the one at `at` marked; `sweep` marks its row or column of tiles. Its end."""
    w, h = max(columns * wide, 7), max(rows * tall, 7)
    fits = 7.3 * len(name) <= w
    pen.text(x + w / 2 if fits else x, y - 8, name, 12, bold=True, anchor="middle" if fits else "start", mono=True)
    pen.rect(x, y, w, h, fill="fill", stroke="line")
    deep, long = tile
    for n in range(ceil(rows / deep)):
        for m in range(ceil(columns / long)):
            box = (x + m * long * wide, y + n * deep * tall, min(long, columns - m * long) * wide,
                   min(deep, rows - n * deep) * tall)  # fmt: skip
            own = (n, m) == at
            swept = (sweep == "row" and n == at[0]) or (sweep == "column" and m == at[1])
            if own or swept:
                pen.rect(*box, fill=colour, opacity=0.9 if own and not sweep else 0.38)
            pen.rect(*box, stroke="line", thick=0.8)
    return x + w


def note(pen: Pen, y: float, words: str) -> None:
    pen.text(18, y, words, 12, "soft")


def sheet(made: list[Launch], name: str) -> tuple[Pen, Launch, str]:
    launch = next(launch for launch in made if stem(launch) == name)
    pen = Pen(760, 206, f"{name}: {DOES[name]}")
    blocks = ", ".join(f"{key} {value}" for key, value in launch.constexprs.items() if key[-2:] in ("_B", "_C", "_D"))
    kind = "program" if programs(launch) == 1 else "programs"
    pen.text(18, 192, f"{programs(launch)} {kind} of {launch.num_warps} warps; {blocks}", 11.5, "soft", mono=True)
    return pen, launch, PHASES[name]


def draw_logits(made: list[Launch]) -> Pen:
    pen, launch, colour = sheet(made, "logits")
    block = launch.constexprs
    tile = (block["BLOCK_B"], block["BLOCK_D"])
    x = matrix(pen, 18, 60, B, D, "features (B, D)", colour, tile, (0, 0), "row", 0.82)
    pen.text(x + 12, 92, "x", 15, "soft")
    tile = (block["BLOCK_C"], block["BLOCK_D"])
    x = matrix(pen, x + 30, 44, C, D, "mu, W, mu_f (C, D)", colour, tile, (0, 0), "row", 0.82)
    pen.line((x + 8, 92), (x + 38, 92), arrow=True)
    x = matrix(pen, x + 46, 60, B, C, "S_g, S_f (B, C)", colour, (block["BLOCK_B"], block["BLOCK_C"]), (0, 0), "", 1.75)
    pen.line((x + 6, 92), (x + 26, 92), arrow=True)
    tiles = ceil(C / block["BLOCK_C"])
    matrix(pen, x + 36, 60, B, tiles, "parts", colour, (block["BLOCK_B"], 1), (0, 0), "", 10)
    note(pen, 162, "A program owns one tile for all three; `parts` keeps each row's maximum, sum and best class.")
    return pen


def draw_statistics(made: list[Launch]) -> Pen:
    pen, launch, colour = sheet(made, "statistics")
    block = launch.constexprs
    rows, columns = block["BLOCK_B"], block["BLOCK_C"]
    x = matrix(pen, 18, 50, B, C, "S_g, S_f (B, C)", colour, (B, columns), (0, 1), "column", 1.1)
    pen.line((x + 6, 80), (x + 26, 80), arrow=True)
    x = matrix(pen, x + 34, 72, 1, C, "colsum_g, _f", colour, (1, columns), (0, 1), "", 1.1, 10)
    pen.text(18, 128, "a program owns a block of columns", 11, "soft")
    pen.text(18, 143, "and adds its rows in order", 11, "soft")
    x = matrix(pen, x + 40, 50, B, 3, "parts", colour, (rows, 3), (0, 0), "", 8)
    pen.line((x + 6, 80), (x + 26, 80), arrow=True)
    x = matrix(pen, x + 40, 50, B, 1, "y_M", colour, (rows, 1), (0, 0), "", 9)
    tile = (block["SUMS_C"], block["SUMS_D"])
    x = matrix(pen, x + 44, 50, B, D, "features by label", colour, (block["SUMS_B"], tile[1]), (0, 0), "column", 0.62)
    pen.line((x + 6, 80), (x + 26, 80), arrow=True)
    matrix(pen, x + 34, 38, C, D, "sums (C, D)", colour, tile, (0, 0), "", 0.62)
    pen.text(x - 158, 128, "onehot(labels)' x features:", 11, "soft")
    pen.text(x - 158, 143, "a tile of classes an owner", 11, "soft")
    return pen


def draw_objective(made: list[Launch]) -> Pen:
    pen, launch, colour = sheet(made, "objective")
    rows = launch.constexprs["BLOCK_B"]
    x = 18.0
    for head in ("g", "f"):
        x = matrix(pen, x, 56, B, C, f"S_{head} (B, C)", colour, (rows, C), (2, 0), "", 2.0)
        pen.line((x + 8, 80), (x + 34, 80), arrow=True)
        x = matrix(pen, x + 40, 56, B, C, f"slopes_{head}", colour, (rows, C), (2, 0), "", 1.2)
        x = matrix(pen, x + 30, 56, launch.grid[0], C, f"parts of {head}", colour, (1, C), (2, 0), "", 0.7, 6) + 24
    note(
        pen,
        134,
        "A program owns a few rows of one head: maximum and both sums in one sweep over classes, the loss",
    )
    note(pen, 151, "and KL(Q || P) in a second, the slope P - y in a third: written once, for the backward pass.")
    return pen


def draw_totals(made: list[Launch]) -> Pen:
    pen, launch, colour = sheet(made, "totals")
    blocks = launch.reads[0].shape[1]
    x = 18.0
    for name, width in (("loss", 1), ("kl", 1), ("Q", C), ("cos", C)):
        shape, wide = (2 * blocks, width), 2 if width > 1 else 20
        x = matrix(pen, x + 20, 56, *shape, f"{name}_parts", colour, shape, (0, 0), "", wide, 4) + 42
    pen.line((x - 26, 92), (x + 6, 92), arrow=True)
    for n, name in enumerate(("loss", "loss_g", "loss_f", "structure_g", "structure_f")):
        pen.rect(x + 18, 40 + 24 * n, 11, 11, fill=colour, r=2)
        pen.text(x + 36, 50 + 24 * n, name, 12, mono=True)
    note(pen, 158, "What the blocks of rows left, added in their order; the cos columns are for backward.")
    return pen


def draw_backward(made: list[Launch]) -> Pen:
    pen, launch, colour = sheet(made, "backward")
    block = launch.constexprs
    rows, classes, depth = block["BLOCK_B"], block["BLOCK_C"], block["BLOCK_D"]
    x = matrix(pen, 18, 56, B, C, "P - y", colour, (rows, C), (0, 0), "row", 1.0)
    pen.text(x + 9, 88, "x", 15, "soft")
    x = matrix(pen, x + 26, 40, C, D, "W, mu_f", colour, (C, depth), (0, 1), "column", 0.45)
    pen.line((x + 6, 84), (x + 28, 84), arrow=True)
    x = matrix(pen, x + 36, 56, B, D, "dfeatures", colour, (rows, depth), (0, 1), "", 0.45)
    left = x + 28
    x = matrix(pen, left, 40, C, B, "(P - y)'", colour, (classes, B), (1, 0), "row", 1.7)
    pen.text(x + 9, 88, "x", 15, "soft")
    x = matrix(pen, x + 26, 56, B, D, "features", colour, (B, depth), (0, 2), "column", 0.45)
    pen.line((x + 6, 84), (x + 28, 84), arrow=True)
    matrix(pen, x + 36, 40, C, D, "dW, dmu_f", colour, (classes, depth), (1, 2), "", 0.45)
    pen.text(18, 158, "The slopes P - y were written by the objective, once.", 12, "soft")
    pen.text(left, 158, "Three gradients, one grid: each tile has one owner.", 12, "soft")
    return pen


def draw_memory(made: list[Launch]) -> Pen:
    pen, launch, colour = sheet(made, "memory")
    tile = (launch.constexprs["BLOCK_C"], launch.constexprs["BLOCK_D"])
    x = matrix(pen, 18, 44, C, D, "sums / counts (C, D)", colour, tile, (1, 0), "", 0.98)
    pen.line((x + 8, 92), (x + 40, 92), arrow=True)
    x = matrix(pen, x + 50, 44, C, D, "mu (C, D), in place", colour, tile, (1, 0), "", 0.98)
    x = matrix(pen, x + 44, 60, 1, C, "pi (C)", colour, (1, C), (0, 0), "", 1.5, 12)
    pen.text(x - 98, 100, "its last program", 11.5, "soft")
    note(
        pen,
        162,
        "A class without an image in the batch keeps its bits; after a non-finite feature all stay.",
    )
    return pen


def pictures() -> dict[str, Pen]:
    """Every picture by its file's name."""
    made = launches_of(B, C, D)
    drawn = {"step": draw_step(made), "strip": draw_strip()}
    owners = (draw_logits, draw_statistics, draw_objective, draw_totals, draw_backward, draw_memory)
    for number, draw in enumerate(owners, 1):
        drawn[f"{number}-{draw.__name__.removeprefix('draw_')}"] = draw(made)
    return drawn


def main(folder: Path = OUT) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, pen in pictures().items():
        pen.save(folder / f"{name}.svg")


if __name__ == "__main__":
    main()
