"""Self-contained HTML from templates/: one file, no network, light and dark as the system is, tables that sort."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from smodice_cli import __version__
from smodice_cli.views.diagnostics import WORDS
from smodice_cli.views.render import output, png
from smodice_cli.views.render.terminal import Block, Table
from smodice_cli.views.render.theme import Panel

WIDTH, FULL_WIDTH, HEIGHT, DPI = 4.6, 9.6, 3.2, 130  # inches of a panel and of a wide one
ELSEWHERE = ("over training", "made from")  # tables that a page shows as a picture, and as its provenance
LONG = 40  # letters beyond which a cell may break into lines
Cell = str | tuple[str, float]  # what is shown, or what is shown and what it is sorted by


def save(path: Path, template: str, **content: Any) -> Path:
    """Write a page."""
    return output.write(path, _environment().get_template(template).render(content))


def save_inspection(path: Path, name: str, panels: Sequence[Panel], facts: dict[str, Any], blocks: list[Block]) -> Path:
    """One artifact as a page: verdict, pictures, tables, provenance."""
    tables = [block for block in blocks if isinstance(block, Table) and block.rows and block.title not in ELSEWHERE]
    health = next((table for table in tables if table.title == "health"), None)  # stands above the pictures
    return save(path, "inspection.html", title=name, facts=facts, health=health, panels=panels, tables=tables)


@cache
def _environment() -> Any:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    kept: Any = {"autoescape": True, "trim_blocks": True, "lstrip_blocks": True, "keep_trailing_newline": True}
    found = Environment(loader=PackageLoader("smodice_cli.views.render"), undefined=StrictUndefined, **kept)
    found.globals |= {"version": __version__, "mark": output.MARK, "words": WORDS, "drawn": drawn, "classes": classes}
    return found


def drawn(panel: Panel, paper: str) -> str:
    """A panel on light or dark paper, as the address of an image that lies in the page itself."""
    figure = png.render(panel, FULL_WIDTH if panel.wide else WIDTH, HEIGHT * panel.height, DPI, paper)
    return "data:image/png;base64," + base64.b64encode(png.encode(png.pixels(figure))).decode()


def classes(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> list[str | None]:
    """The class of each column: those of words stand left, those of long words may break."""
    found: list[str | None] = []
    for index in range(len(columns)):
        words = [len(cell) for row in rows if isinstance(cell := row[index], str) and cell[:1].isalpha()]
        found.append(None if not words else "text long" if max(words) > LONG else "text")
    return found
