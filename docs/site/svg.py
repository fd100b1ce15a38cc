"""A small pen for SVG files that follow the reader's choice of dark or light."""

from __future__ import annotations

import base64
from html import escape
from pathlib import Path

LIGHT = {"bg": "#ffffff", "ink": "#1c2733", "soft": "#5b6876", "line": "#d5dce4", "fill": "#f3f6f9",
         "E": "#2563a8", "C": "#14857a", "M": "#c75f17", "memory": "#7a4fb5",
         "right": "#1d7f4e", "wrong": "#c0392b"}  # fmt: skip
DARK = {"bg": "#141d27", "ink": "#e6edf4", "soft": "#9fb0c0", "line": "#33424f", "fill": "#1d2833",
        "E": "#7db4ee", "C": "#55c5b6", "M": "#f0a060", "memory": "#b99aea",
        "right": "#63cf97", "wrong": "#f08a7e"}  # fmt: skip


class Pen:
    """Shapes by position and the name of a colour; `save` writes them on a sheet of their own."""

    def __init__(self, width: float, height: float, title: str) -> None:
        self.width, self.height, self.title = width, height, title
        self._shapes: list[str] = []

    def rect(self, x: float, y: float, w: float, h: float, fill: str = "none", stroke: str = "none", r: float = 0,
             opacity: float = 1, thick: float = 1) -> None:  # fmt: skip
        """A box, with rounded corners where `r` says so."""
        self._shapes.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{w:.1f}" height="{h:.1f}" rx="{r:g}" class="f-{fill} s-{stroke}" '
            f'stroke-width="{thick:g}" opacity="{opacity:g}"/>'
        )

    def line(self, *points: tuple[float, float], stroke: str = "soft", thick: float = 1.4, arrow: bool = False,
             dashed: bool = False) -> None:  # fmt: skip
        """A line through points, with a head at its end."""
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        more = f' marker-end="url(#head-{stroke})"' if arrow else ""
        more += ' stroke-dasharray="4 3"' if dashed else ""
        self._shapes.append(f'<polyline points="{path}" class="f-none s-{stroke}" stroke-width="{thick:g}"{more}/>')

    def text(self, x: float, y: float, words: str, size: float = 13, fill: str = "ink", bold: bool = False,
             anchor: str = "start", mono: bool = False) -> None:  # fmt: skip
        """Words whose baseline begins, or has its middle or end, at x, y."""
        kind = ("b " if bold else "") + ("m " if mono else "") + f"f-{fill}"
        place = f'x="{x:.1f}" y="{y:.1f}" font-size="{size:g}" text-anchor="{anchor}"'
        self._shapes.append(f'<text {place} class="{kind}">{escape(words)}</text>')

    def image(self, x: float, y: float, side: float, content: bytes) -> None:
        """A PNG file, held by this one."""
        data = base64.b64encode(content).decode()
        self._shapes.append(
            f'<image x="{x:.1f}" y="{y:.1f}" width="{side:g}" height="{side:g}" href="data:image/png;base64,{data}"/>'
        )

    def circle(self, x: float, y: float, r: float, fill: str) -> None:
        self._shapes.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{r:g}" class="f-{fill}"/>')

    def save(self, file: Path) -> None:
        """With the colours of both schemes, and a background of its own: it is read on any page."""
        heads = "".join(
            f'<marker id="head-{name}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
            f'orient="auto-start-reverse"><path d="M0 0 8 4 0 8z" class="f-{name}"/></marker>'
            for name in ("soft", "E", "C", "M", "memory")
        )
        file.write_text(
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width:g} {self.height:g}" role="img">'
            f"<title>{escape(self.title)}</title><style>{_rules()}</style><defs>{heads}</defs>"
            f'<rect width="100%" height="100%" rx="10" class="f-bg"/>{"".join(self._shapes)}</svg>\n',
            encoding="utf-8",
        )


def _rules() -> str:
    def colours(table: dict[str, str]) -> str:
        return "".join(f".f-{name}{{fill:{value}}}.s-{name}{{stroke:{value}}}" for name, value in table.items())

    return (
        "text{font-family:-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif}.b{font-weight:650}"
        ".m{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}.f-none{fill:none}.s-none{stroke:none}"
        f".f-white{{fill:#fff}}{colours(LIGHT)}@media(prefers-color-scheme:dark){{{colours(DARK)}.f-white{{fill:#141d27}}}}"
    )
