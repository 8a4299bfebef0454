"""Panels as PNG, SVG or PDF: drawn by matplotlib, which loads here and nowhere before; all of a view on one sheet."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from smodice_cli.errors import UsageError, nearest
from smodice_cli.lazy import np
from smodice_cli.views.render import output
from smodice_cli.views.render.theme import Panel, on_paper

DPI = 160
FULL, HEIGHT = 10.8, 3.7  # inches of a sheet, and of a panel on it
HEADS = (0.85, 1.5)  # inches of a heading of one line, and of more
ENDINGS = (".png", ".svg", ".pdf")
MARKED = {  # where the mark of our files stands; without a date
    ".svg": {"Creator": output.MARK, "Date": None},
    ".pdf": {"Creator": output.MARK, "CreationDate": None},
}


def render(panel: Panel, width: float, height: float, dpi: int = DPI, paper: str = "light") -> Any:
    """A panel drawn as a figure of its own."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with on_paper(paper):
        figure = Figure(figsize=(width, height), dpi=dpi, layout="compressed")
        canvas = FigureCanvasAgg(figure)
        panel.draw(figure, *panel.shown)
        canvas.draw()
    return figure


def pixels(figure: Any) -> np.ndarray:
    """The figure as it was drawn, (height, width, 3)."""
    return np.asarray(figure.canvas.buffer_rgba())[..., :3]


def encode(pixels: np.ndarray, **text: str) -> bytes:
    """Pixels as a PNG with text chunks, of few colours: a chart needs no more, and pages stay small."""
    from PIL import Image, PngImagePlugin

    chunks = PngImagePlugin.PngInfo()
    for name, value in text.items():
        chunks.add_text(name, value)
    buffer = io.BytesIO()
    image = Image.fromarray(np.ascontiguousarray(pixels)).quantize(192, dither=Image.Dither.NONE)
    image.save(buffer, "PNG", optimize=True, pnginfo=chunks)
    return buffer.getvalue()


def pick(panels: Sequence[Panel], names: str) -> list[Panel]:
    """The panels of these names, in this order; all where none is named."""
    known = list(dict.fromkeys(panel.key for panel in panels))
    asked = [name.strip() for name in names.split(",")] if names else known
    for name in asked:
        if name not in known:
            raise UsageError(f"--panels: there is no '{name}' here", nearest(name, known))
    return [panel for name in asked for panel in panels if panel.key == name]


def save(path: Path, panels: Sequence[Panel], name: str, heading: Sequence[str]) -> Path:
    """All panels on one sheet below a heading; the ending of the name says how it is stored."""
    with on_paper("light"):
        figure = sheet(panels, name, heading)
        if (ending := path.suffix.lower()) == ".png":
            figure.canvas.draw()
            return output.write(path, encode(pixels(figure), Software=output.MARK))
        buffer = io.BytesIO()
        figure.savefig(buffer, format=ending[1:], metadata=MARKED[ending])
        return output.write(path, buffer.getvalue())


def sheet(panels: Sequence[Panel], name: str, heading: Sequence[str]) -> Any:
    """Two panels in a row, one that is wide or left over across the sheet."""
    from matplotlib import rcParams
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows: list[list[Panel]] = []
    for panel in panels:
        if not rows or panel.wide or len(rows[-1]) == 2 or rows[-1][0].wide:
            rows.append([panel])
        else:
            rows[-1].append(panel)
    heights = [HEADS[len(heading) > 1], *(HEIGHT * max(panel.height for panel in row) for row in rows)]
    figure = Figure(figsize=(FULL, sum(heights)), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    head, *strips = figure.subfigures(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0]
    for row, strip in zip(rows, strips, strict=True):
        for panel, place in zip(row, strip.subfigures(1, len(row), squeeze=False)[0], strict=True):
            panel.draw(place, *panel.shown)
            place.suptitle(panel.title, x=0.012, ha="left")
    head.text(0.012, 0.74, name, fontsize=15, weight="bold")
    head.text(0.012, 0.50, heading[0], fontsize=10, color=rcParams["axes.labelcolor"])
    for place, text in zip((0.27, 0.04), heading[1:], strict=False):
        head.text(0.012, place, text, fontsize=10.5)
    return figure
