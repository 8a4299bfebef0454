"""Panels as PNG: drawn by matplotlib, which loads here and nowhere before, and all panels of a view on one sheet."""

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
HALF, FULL, HEIGHT = 5.4, 10.8, 3.7  # inches of a panel


def render(
    panel: Panel, width: float, height: float, dpi: int = DPI, paper: str = "light", titled: bool = False
) -> Any:
    """A panel drawn as a figure of its own."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with on_paper(paper):
        figure = Figure(figsize=(width, height), dpi=dpi)
        canvas = FigureCanvasAgg(figure)
        panel.draw(figure, *panel.shown)
        if titled:
            figure.suptitle(panel.title, x=0.012, ha="left")
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
    """The panels of these names, in this order."""
    known = {panel.key: panel for panel in panels}
    asked = [name.strip() for name in names.split(",")]
    for name in asked:
        if name not in known:
            raise UsageError(f"--panels: there is no '{name}' here", nearest(name, list(known)))
    return [known[name] for name in asked]


def save(path: Path, panels: Sequence[Panel], name: str, heading: Sequence[str]) -> Path:
    """All panels on one sheet below a heading, two in a row, one that is left over across the sheet."""

    def write(figure: Any) -> None:
        from matplotlib import rcParams

        figure.text(0.012, 0.74, name, fontsize=15, weight="bold")
        figure.text(0.012, 0.50, heading[0], fontsize=10, color=rcParams["axes.labelcolor"])
        for place, text in zip((0.27, 0.04), heading[1:], strict=False):
            figure.text(0.012, place, text, fontsize=10.5)

    rows = [[Panel("head", "", "", write, wide=True)]]
    for panel in panels:
        if panel.wide or len(rows[-1]) == 2 or rows[-1][0].wide:
            rows.append([panel])
        else:
            rows[-1].append(panel)
    strips = []
    for number, row in enumerate(rows):
        height = HEIGHT if number else 1.5 if len(heading) > 1 else 0.85
        width = FULL if len(row) == 1 else HALF
        drawn = [pixels(render(panel, width, height, titled=number > 0)) for panel in row]
        strips.append(np.concatenate(drawn, axis=1))
    return output.write(path, encode(np.concatenate(strips), Software=output.MARK))
