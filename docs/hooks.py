"""mkdocs: the pages that lie above docs/ are part of the site too, their links turned to where things stand there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
PAGES = {"README.md": "index.md", "DIFFERENCES.md": "differences.md", "CHANGELOG.md": "changes.md"}
TURNED = {"](docs/": "](", "](../": "](", **{f"]({name})": f"]({place})" for name, place in PAGES.items()}}


def turned(text: str) -> str:
    for here, there in TURNED.items():
        text = text.replace(here, there)
    return text


def on_files(files: Files, config: Any) -> Files:
    for name, place in PAGES.items():
        files.append(File.generated(config, place, content=turned((ROOT / name).read_text())))
    files.append(File.generated(config, "CITATION.cff", content=(ROOT / "CITATION.cff").read_text()))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    return turned(markdown)
