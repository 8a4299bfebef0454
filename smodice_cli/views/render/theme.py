"""How pictures look, on light and on dark paper: style sheets (*.mplstyle), and what those cannot say."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

HEAT = {  # from little to much
    "light": ("#dbe9f6", "#9cc6e2", "#4f9bcb", "#1f65a8", "#08306b"),
    "dark": ("#1d3348", "#205a86", "#3690c5", "#86c9ec", "#f2fbff"),
}


@contextmanager
def on_paper(paper: str) -> Iterator[None]:
    """Draw with the colours of `light` or of `dark` paper."""
    import matplotlib.style
    from matplotlib.colors import LinearSegmentedColormap

    if (heat := f"heat-{paper}") not in matplotlib.colormaps:
        colours = LinearSegmentedColormap.from_list(heat, HEAT[paper])
        matplotlib.colormaps.register(colours.with_extremes(under="none"))
    with matplotlib.style.context([f"smodice_cli.views.render.{sheet}" for sheet in ("quiet", paper)]):
        yield


@dataclass(frozen=True)
class Panel:
    """One picture: its title, one sentence on how to read it, and what draws it: draw(figure, *shown)."""

    key: str
    title: str
    caption: str
    draw: Callable[..., None]
    shown: tuple[Any, ...] = ()
    wide: bool = False  # takes the whole width of a page
    rows: int = 1  # of axes below each other

    @property
    def height(self) -> float:
        """In units of a panel with one row of axes."""
        return 0.4 + 0.6 * self.rows


def band(axes: Any, across: str, line: Mapping[str, list[float]], colour: str, label: str, marks: str = "-") -> None:
    """A line's mean against its column `across`, and the band between low and high."""
    axes.fill_between(line[across], line["low"], line["high"], color=colour, alpha=0.2, lw=0)
    axes.plot(line[across], line["mean"], marks, color=colour, lw=2, ms=3, label=label)


def filled_steps(axes: Any, heights: Any, edges: Any, colour: str, label: str) -> None:
    """A histogram as a line with a light filling, so that several can lie over each other."""
    axes.stairs(heights, edges, color=colour, lw=1.8, label=label)
    axes.stairs(heights, edges, color=colour, alpha=0.18, fill=True)


def colour_bar(figure: Any, image: Any, axes: Any, label: str) -> None:
    """A quiet colour bar beside the axes."""
    bar = figure.colorbar(image, ax=axes, shrink=0.85, pad=0.02, aspect=22)
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=8, length=0)
    bar.ax.minorticks_off()
    bar.set_label(label, fontsize=8.5)
