"""The cards that a run can be planned for. Figures are the makers', dense, as sold in a server where there is a choice.

`reach` is the share of the model's speed that a card is expected to come to. It is 1 where a published training speed
fits the model (docs/plan.md has the comparison), and less where the published ones stay behind the card's bandwidth, or
where there is none. No torch here.
"""

from __future__ import annotations

from dataclasses import dataclass

from fastget.common.text import close_matches

TERA, GIGA = 1e12, 1e9
CPU = "cpu"


@dataclass(frozen=True, kw_only=True)
class PlanCard:
    """One device, as a rank sees it."""

    name: str
    title: str
    half: float  # bfloat16 (or float16, before Ampere) operations a second, accumulated in float32
    single: float  # float32 operations a second, in TF32 where convolutions use it
    bandwidth: float  # bytes a second of its memory
    memory: float  # bytes
    link: float  # bytes a second to the other cards of its node, each way
    node: int = 8  # cards a node
    wire: float = 25 * GIGA  # bytes a second to other nodes, for each card
    jpeg: float = 6_000.0  # images of about 0.2 megapixels a second that it decodes and crops
    reach: float = 1.0


def _card(
    name: str, title: str, half: float, single: float, bandwidth: float, memory: float, **other: float
) -> PlanCard:
    link, wire = other.pop("link", 12) * GIGA, other.pop("wire", 12.5) * GIGA
    return PlanCard(
        name=name, title=title, half=half * TERA, single=single * TERA, bandwidth=bandwidth * GIGA,
        memory=memory * 2**30, link=link, wire=wire, **other,  # type: ignore[arg-type]  # jpeg, reach: floats
    )  # fmt: skip


# TFLOPS half and single, GB/s of memory, GiB; GB/s of the link (PCIe 12 or 25, NVLink 130 to 700 as NCCL reaches it)
CARDS = {
    card.name: card
    for card in (
        _card("t4", "NVIDIA T4", 65, 8.1, 320, 16, jpeg=2_500),
        _card("v100", "NVIDIA V100 SXM2", 125, 15.7, 900, 32, link=130, jpeg=4_800),
        _card("a10", "NVIDIA A10", 125, 62, 600, 24, link=25, jpeg=6_000),
        _card("l4", "NVIDIA L4", 121, 60, 300, 24, jpeg=6_000),
        _card("a100-40", "NVIDIA A100 40 GB", 312, 156, 1_555, 40, link=230, wire=25, jpeg=7_000),
        _card("a100-80", "NVIDIA A100 80 GB", 312, 156, 2_039, 80, link=230, wire=25, jpeg=7_000),
        _card("rtx3090", "NVIDIA GeForce RTX 3090", 71, 35.6, 936, 24),
        _card("rtx4090", "NVIDIA GeForce RTX 4090", 165, 82.6, 1_008, 24, link=20),
        _card("rtx5090", "NVIDIA GeForce RTX 5090", 210, 105, 1_792, 32, link=25),
        _card("h100", "NVIDIA H100 SXM", 989, 495, 3_350, 80, link=360, wire=50, jpeg=21_567),
        _card("h200", "NVIDIA H200 SXM", 989, 495, 4_800, 141, link=360, wire=50, jpeg=21_567, reach=0.8),
        _card("b200", "NVIDIA B200", 2_250, 1_120, 8_000, 180, link=700, wire=50, jpeg=21_567, reach=0.6),
        _card("mi250", "AMD MI250, one of its two devices", 181, 45.3, 1_638, 64, link=50, wire=25, reach=0.6),
        _card("mi300", "AMD MI300X", 1_307, 654, 5_300, 192, link=300, wire=50, reach=0.6),
    )
}
ALIASES = {"a100": "a100-80", "a100-40gb": "a100-40", "a100-80gb": "a100-80", "mi300x": "mi300", "h100-sxm": "h100",
           "3090": "rtx3090", "4090": "rtx4090", "5090": "rtx5090"}  # fmt: skip


def card_of(name: str) -> PlanCard:
    """By its name. ValueError with the nearest ones."""
    plain = "-".join(name.lower().replace("nvidia", "").replace("amd", "").replace("_", " ").split())
    plain = ALIASES.get(plain, plain)
    if plain not in CARDS:
        known = [*CARDS, *ALIASES, CPU]
        close = close_matches(plain, known, most=3)
        hint = f" (did you mean {' or '.join(map(repr, close))}?)" if close else ""
        raise ValueError(f"unknown card {name!r}{hint}: choose from {CPU}, {', '.join(CARDS)}")
    return CARDS[plain]


def found_by(device_name: str) -> PlanCard | None:
    """The card that a driver calls by this name: all words of one of ours are in it."""
    words = device_name.lower().replace("-", " ").split()
    for card in sorted(CARDS.values(), key=lambda card: -len(card.title)):
        short = card.name.replace("rtx", "").split("-")
        if all(any(word.startswith(part) for word in words) for part in short):
            return card
    return None
