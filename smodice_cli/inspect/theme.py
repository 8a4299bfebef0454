"""How pictures look, on light and on dark paper: one colour-blind-safe palette (Okabe and Ito), quiet axes."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DPI = 160


@dataclass(frozen=True)
class Theme:
    """Colours of one kind of paper."""

    paper: str
    ink: str
    muted: str
    line: str
    series: tuple[str, ...]
    heat: tuple[str, ...]  # from little to much
    empty: str  # cells that hold nothing


LIGHT = Theme(
    paper="#ffffff",
    ink="#1f2430",
    muted="#5b6472",
    line="#dfe3ea",
    series=("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#5e3c99", "#8c8c8c", "#7a4e1d"),
    heat=("#dbe9f6", "#9cc6e2", "#4f9bcb", "#1f65a8", "#08306b"),
    empty="#ffffff",
)
DARK = Theme(
    paper="#161b22",
    ink="#e6e9ef",
    muted="#9aa4b2",
    line="#2c3440",
    series=("#56b4e9", "#ff8a3d", "#2fc79b", "#e39cc4", "#f2c14e", "#9bd3ff", "#b39ddb", "#bdbdbd", "#c49a6c"),
    heat=("#1d3348", "#205a86", "#3690c5", "#86c9ec", "#f2fbff"),
    empty="#161b22",
)

Draw = Callable[[Any, Theme], None]  # draws on a figure


@dataclass(frozen=True)
class Panel:
    """One picture: its title, one sentence on how to read it, and how to draw it."""

    key: str
    title: str
    caption: str
    draw: Draw
    wide: bool = False  # takes the whole width of a page


def render(panel: Panel, theme: Theme, width: float, height: float, dpi: int = DPI) -> Figure:
    """A panel as a figure of its own."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as PlainFigure

    figure = PlainFigure(figsize=(width, height), dpi=dpi, facecolor=theme.paper, layout="constrained")
    FigureCanvasAgg(figure)
    panel.draw(figure, theme)
    return figure


def as_png(figure: Figure) -> bytes:
    """The figure as a PNG of few colours: a chart needs no more, and the page stays small."""
    return png_bytes(pixels(figure))


def pixels(figure: Figure) -> np.ndarray:
    """The figure as it is drawn, (height, width, 3)."""
    figure.canvas.draw()
    return np.asarray(figure.canvas.buffer_rgba())[..., :3]  # type: ignore[attr-defined]


def png_bytes(pixels: np.ndarray, **text: str) -> bytes:
    """Pixels as a palette PNG with text chunks."""
    from PIL import Image, PngImagePlugin

    chunks = PngImagePlugin.PngInfo()
    for name, value in text.items():
        chunks.add_text(name, value)
    buffer = io.BytesIO()
    image = Image.fromarray(np.ascontiguousarray(pixels)).quantize(192, dither=Image.Dither.NONE)
    image.save(buffer, "PNG", optimize=True, pnginfo=chunks)
    return buffer.getvalue()


def style(axes: Axes, theme: Theme, x: str = "", y: str = "", title: str = "", grid: bool = True) -> Axes:
    """Quiet axes: no box, thin grid, labels in the muted ink."""
    axes.set_facecolor(theme.paper)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(theme.line)
    axes.tick_params(colors=theme.muted, labelsize=8.5, length=3, color=theme.line)
    axes.set_xlabel(x, color=theme.muted, fontsize=9)
    axes.set_ylabel(y, color=theme.muted, fontsize=9)
    if title:
        axes.set_title(title, color=theme.ink, fontsize=9.5, loc="left", pad=5)
    if grid:
        axes.grid(True, color=theme.line, linewidth=0.7)
        axes.set_axisbelow(True)
    return axes


def band(
    axes: Axes, across: str, line: Mapping[str, Sequence[float]], colour: str, label: str, marks: str = "-"
) -> None:
    """A line's mean against its column `across`, and the band between low and high."""
    axes.fill_between(line[across], line["low"], line["high"], color=colour, alpha=0.2, lw=0)
    axes.plot(line[across], line["mean"], marks, color=colour, lw=2, ms=3, label=label)


def legend(axes: Axes | Figure, theme: Theme, **options: Any) -> None:
    """A legend without a box, inside the axes or beside all that a figure shows."""
    defaults = {"frameon": False, "fontsize": 8.5, "labelcolor": theme.ink, "handlelength": 1.4}
    axes.legend(**(defaults | options))


def heat_map(theme: Theme) -> Any:
    """The sequential colours of a theme; what is masked shows the paper."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("heat", theme.heat).with_extremes(bad=theme.empty, under=theme.empty)
