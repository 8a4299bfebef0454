"""Self-contained HTML: one file, no network, light and dark by the reader's system, tables that sort."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from smodice_cli import __version__
from smodice_cli.inspect import output, terminal
from smodice_cli.inspect.theme import DARK, LIGHT, Panel, Theme, as_png, render

WIDTH, FULL_WIDTH, HEIGHT = 4.6, 9.6, 3.2  # inches of a panel and of a wide one
LONG = 40  # letters beyond which a cell may break into lines


def document(title: str, body: str) -> str:
    """A whole page; the policy in its head forbids every request to anywhere."""
    here = files("smodice_cli.inspect")
    css, script = (here.joinpath(name).read_text() for name in ("page.css", "page.js"))
    policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="generator" content="smodice {__version__}, {output.MARK}">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        f'<link rel="icon" href="data:,">\n<title>{escape(title)}</title>\n<style>\n{css}</style>\n</head>\n'
        f"<body>\n<main>\n{body}\n</main>\n<script>\n{script}</script>\n</body>\n</html>\n"
    )


def picture(panel: Panel) -> str:
    """A panel in both themes; the browser shows the one that fits."""
    light, dark = (_data_url(panel, theme) for theme in (LIGHT, DARK))
    kind = ' class="wide"' if panel.wide else ""
    return (
        f'<figure{kind} id="{escape(panel.key)}"><h3>{escape(panel.title)}</h3><div class="scroll"><picture>'
        f'<source srcset="{dark}" media="(prefers-color-scheme: dark)">'
        f'<img src="{light}" alt="{escape(panel.title)}: {escape(panel.caption)}" ></picture></div>'
        f"<figcaption>{escape(panel.caption)}</figcaption></figure>"
    )


def _data_url(panel: Panel, theme: Theme) -> str:
    image = as_png(render(panel, theme, FULL_WIDTH if panel.wide else WIDTH, HEIGHT, dpi=130))
    return "data:image/png;base64," + base64.b64encode(image).decode()


def pictures(panels: Sequence[Panel]) -> str:
    """Panels side by side where there is room."""
    return f'<div class="grid">{"".join(map(picture, panels))}</div>'


Cell = str | tuple[str, float]  # what is shown, or what is shown and what it is sorted by


def table(columns: Sequence[str], rows: Sequence[Sequence[Cell]], sortable: bool = True) -> str:
    """A table that sorts by any column."""
    kinds = [_kind([row[index] for row in rows]) for index in range(len(columns))]
    heads = "".join(
        f'<th scope="col"{kind}>{f"<button type=button>{escape(name)}</button>" if sortable else escape(name)}</th>'
        for name, kind in zip(columns, kinds, strict=True)
    )
    head = f"<thead><tr>{heads}</tr></thead>" if any(columns) else ""
    body = "".join(f"<tr>{''.join(map(_cell, row, kinds))}</tr>" for row in rows)
    kind = ' class="sortable"' if sortable and head else ""
    return f'<div class="scroll"><table{kind}>{head}<tbody>{body}</tbody></table></div>'


def _kind(cells: Sequence[Cell]) -> str:
    """Columns of words stand left, those of long words may break."""
    words = [cell for cell in cells if isinstance(cell, str) and cell[:1].isalpha()]
    if not words:
        return ""
    return ' class="text long"' if max(map(len, words)) > LONG else ' class="text"'


def _cell(cell: Cell, kind: str) -> str:
    if isinstance(cell, tuple):
        return f'<td{kind} data-value="{cell[1]!r}">{escape(cell[0])}</td>'
    return f"<td{kind}>{escape(cell)}</td>"


def verdict(found: dict[str, Any]) -> str:
    """The coloured verdict with what to try."""
    level = found["level"]
    items = "".join(
        f'<li>{escape(finding["text"])}<br><span class="muted">Try: {escape(finding["remedy"])}</span></li>'
        for finding in found["findings"]
    )
    listed = f"<ul>{items}</ul>" if items else ""
    return f'<div class="verdict {level}"><b>{level}: {terminal.WORDS[level]}</b>{listed}</div>'


def facts(pairs: dict[str, str]) -> str:
    """Names and values, one below the other."""
    return f"<dl>{''.join(f'<dt>{escape(k)}</dt><dd>{escape(v)}</dd>' for k, v in pairs.items())}</dl>"


def tables(blocks: Sequence[terminal.Block]) -> str:
    """The tables among a view's blocks, each with its title."""
    parts = []
    for block in blocks:
        if isinstance(block, terminal.Table) and block.rows and block.title != "over training":
            parts.append(f"<section><h3>{escape(block.title)}</h3>{table(block.columns, block.rows)}</section>")
    return "".join(parts)


def provenance(view: dict[str, Any]) -> str:
    """Where an artifact comes from and with which settings."""
    settings = "  ".join(f"{name}={value}" for name, value in view["config"].items())
    versions = "  ".join(f"{name} {value}" for name, value in view["versions"].items())
    pairs = {
        "made by": f"smodice {view['stage']}, seed {view['seed']}, {view['seconds']:.1f} s",
        "digest": view["digest"],
        "settings": settings,
        "versions": versions,
    }
    made = "; ".join(f"{entry['path']} ({entry['state']})" for entry in view["provenance"])
    return facts(pairs | ({"made from": made} if made else {}))


def save_inspection(path: Path, panels: Sequence[Panel], view: dict[str, Any]) -> Path:
    """One artifact as a page: verdict, pictures, tables, provenance."""
    name = "/".join(Path(view["path"]).parts[-3:])
    blocks = [block for block in terminal.blocks(view) if not _is(block, "made from")]
    what = f"{view['kind']} artifact of smodice {view['stage']}"
    body = f'<h1>{escape(name)}</h1><p class="muted">{escape(what)}</p>'
    if "verdict" in view:
        body += verdict(view["verdict"])
        card = terminal.card(view)
        body += f"<section><h2>Health</h2>{table(card.columns, card.rows)}</section>"
        blocks = [block for block in blocks if not _is(block, card.title)]
    body += f"<section><h2>Pictures</h2>{pictures(panels)}</section>{tables(blocks)}"
    body += f"<section><h2>Provenance</h2>{provenance(view)}</section>"
    return output.write(path, document(name, body))


def _is(block: terminal.Block, title: str) -> bool:
    return isinstance(block, terminal.Table) and block.title == title
