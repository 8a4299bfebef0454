"""Views for people at a terminal: blocks of tables and of lines with markup, and how numbers look in them."""

from __future__ import annotations

import string
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from smodice_cli.console import WIDE, console, escape

BAR = 28  # characters of the longest bar
LINE = 100  # characters of a line of settings, where the terminal has them
EIGHTHS = " ▏▎▍▌▋▊▉█"
SPARKS = "▁▂▃▄▅▆▇█"


class Table(NamedTuple):
    """A table: its title, columns and rows."""

    title: str
    columns: list[str]
    rows: list[list[str]]


Block = Table | list[str]  # a list: lines with markup


def show(blocks: Sequence[Block]) -> None:
    """Print blocks with a line between them."""
    for number, block in enumerate(blocks):
        if number:
            console.say([""])
        if isinstance(block, Table):
            console.table(*block)
        else:
            console.say(block)


def short(value: Any) -> str:
    """A figure in few characters."""
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def percent(share: float) -> str:
    """A share in per cent, with as many digits as it needs."""
    size = 100 * share
    return f"{size:.1f} %" if size >= 0.1 or size == 0 else f"{size:.2g} %"


@cache
def columns(table: str) -> dict[str, str]:
    """The columns, or lines, of a table of tables.toml, each with how its figures are formatted."""
    return tomllib.loads(Path(__file__).with_name("tables.toml").read_text())[table]


class _Formatter(string.Formatter):
    """Formats as str.format does; "{share!p}" is a share in per cent."""

    def convert_field(self, value: Any, conversion: Any) -> Any:
        return percent(value) if conversion == "p" else super().convert_field(value, conversion)


def records(title: str, columns: Mapping[str, str], found: Iterable[Mapping[str, Any]]) -> Table:
    """A table of records: `columns` says how the cells below each heading are formatted.

    A column of which no record has the figure is left out.
    """
    entries = list(found)
    cells = {name: [_cell(text, entry) for entry in entries] for name, text in columns.items()}
    kept = [name for name, column in cells.items() if not entries or any(cell is not None for cell in column)]
    return Table(title, kept, [[cells[name][row] or "" for name in kept] for row in range(len(entries))])


def _cell(text: str, entry: Mapping[str, Any]) -> str | None:
    with suppress(KeyError):
        return _Formatter().vformat(text, (), entry)
    return None


def figures(title: str, lines: Mapping[str, str], found: Mapping[str, Any]) -> Table:
    """One record, a line for each name in `lines`, formatted as that says; a figure that is not there has no line."""
    rows = []
    for name, text in lines.items():
        with suppress(KeyError):
            rows.append([name, _Formatter().vformat(text, (), found)])
    return Table(title, ["", ""], rows)


def bar(share: float, width: int = BAR) -> str:
    """A bar of block characters, `width` at a share of 1."""
    eighths = round(8 * width * min(max(share, 0.0), 1.0))
    return "█" * (eighths // 8) + (EIGHTHS[eighths % 8] if eighths % 8 else "")


def between(edges: Sequence[float], counts: Sequence[float]) -> list[tuple[str, float]]:
    """The bars of a histogram, from the first to the last that is not empty, named by their edges."""
    filled = [i for i, count in enumerate(counts) if count]
    stretch = range(filled[0], filled[-1] + 1) if filled else ()
    return [(f"{edges[i]:6.2f} to {edges[i + 1]:6.2f}", counts[i]) for i in stretch]


def histogram(title: str, groups: Mapping[str, Sequence[tuple[str, float]]]) -> list[str]:
    """The named bars of each group, with the share of the group that each stands for."""
    lines = [f"[italic]{escape(title)}[/]"]
    for group, bars in groups.items():
        counts = [count for _, count in bars]
        lines += [f"  [bold]{escape(group)}[/]"] if bars else []
        for name, count in bars:
            lines.append(f"  {name:>18}  [cyan]{bar(count / max(counts)):<{BAR}}[/] {percent(count / sum(counts))}")
    return lines


def spark(values: Sequence[float], width: int = 40) -> str:
    """A curve in one line: at most `width` points, lowest to highest."""
    every = max(1, -(-len(values) // width))
    points = [sum(values[i : i + every]) / len(values[i : i + every]) for i in range(0, len(values), every)]
    low, high = min(points), max(points)
    size = (high - low) or 1.0
    return "".join(SPARKS[min(int(8 * (p - low) / size), 7)] for p in points)


def settings(config: Mapping[str, Any]) -> list[str]:
    """Settings side by side, in as many lines as they need."""
    most = min(LINE, console.width())
    lines, width = ["[dim]settings[/]"], most
    for name, given in config.items():
        value = (", ".join(given) if isinstance(given, list) else str(given)) or "none"
        size = len(f"  {name} {value}")
        if width + size > most:
            lines.append("")
            width = 0
        lines[-1] += f"  {name} [bold]{escape(value)}[/]"
        width += size
    return lines


def curves(found: Mapping[str, Mapping[str, list[float]]]) -> Table:
    """Every figure of a training log in a line."""
    points = 40 if console.width() >= WIDE else 12
    rows = []
    for name, curve in found.items():
        if values := curve["values"]:
            rows.append([name, spark(values, points), f"{values[0]:.4g}", f"{min(values):.4g}", f"{values[-1]:.4g}"])
    return Table("over training", ["figure", "", "first", "least", "last"], rows)
