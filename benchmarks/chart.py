"""Line charts as SVG text: panels side by side, x logarithmic. Knows numbers and labels only."""

import math
from dataclasses import dataclass, field
from xml.sax.saxutils import escape

COLOURS = ("#1b6ca8", "#d1495b", "#8d8d8d", "#3a7d44")
WIDTH, HEIGHT, MARGIN = 330, 260, 48

Points = list[tuple[float, float]]


@dataclass
class Panel:
    """One diagram."""

    title: str
    x_label: str
    y_label: str
    y_top: float
    """Where the diagram ends; lines leave it there."""
    lines: dict[str, Points] = field(default_factory=dict)


def render(panels: list[Panel]) -> str:
    """The panels in one SVG document."""
    width = WIDTH * len(panels)
    body = "".join(
        f'<g transform="translate({WIDTH * i},0)">{_panel(panel)}</g>' for i, panel in enumerate(panels)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT}" '
        f'font-family="sans-serif" font-size="10">'
        f'<rect width="100%" height="100%" fill="white"/>{body}</svg>\n'
    )


def _panel(panel: Panel) -> str:
    xs = [x for points in panel.lines.values() for x, y in points if y <= panel.y_top]
    low, high = math.floor(math.log10(min(xs))), math.ceil(math.log10(max(xs)))
    inner_width, inner_height = WIDTH - MARGIN - 12, HEIGHT - 2 * MARGIN

    def place(x: float, y: float) -> tuple[float, float]:
        across = (math.log10(x) - low) / (high - low)
        return MARGIN + across * inner_width, HEIGHT - MARGIN - min(y / panel.y_top, 1.04) * inner_height

    parts = [_text(WIDTH / 2, 16, panel.title, bold=True), _text(WIDTH / 2, HEIGHT - 12, panel.x_label)]
    parts.append(_text(MARGIN, MARGIN - 20, panel.y_label, anchor="start"))
    for power in range(low, high + 1):
        x, bottom = place(10.0**power, 0)
        parts += [_line(x, bottom, x, MARGIN), _text(x, bottom + 14, f"{10.0**power:g}")]
    for step in range(6):
        value = panel.y_top * step / 5
        x, y = place(10.0**low, value)
        parts += [_line(x, y, x + inner_width, y), _text(x - 5, y + 3, f"{value:.3g}", anchor="end")]
    for number, (label, points) in enumerate(panel.lines.items()):
        colour = COLOURS[number % len(COLOURS)]
        inside = [place(x, y) for x, y in points if y <= panel.y_top]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in inside)
        parts.append(f'<polyline fill="none" stroke="{colour}" stroke-width="1.8" points="{path}"/>')
        y = MARGIN + 12 + 13 * number
        parts.append(f'<rect x="{MARGIN + 6}" y="{y - 7}" width="10" height="3" fill="{colour}"/>')
        parts.append(_text(MARGIN + 20, y, label, anchor="start"))
    return "".join(parts)


def _text(x: float, y: float, text: str, *, anchor: str = "middle", bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{weight}>{escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="#ddd"/>'
