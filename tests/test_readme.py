"""Commands that the documentation shows exist, with flags that parse and files that are there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer

from smodice_cli.app import app

ROOT = Path(__file__).parents[1]
GROUP = typer.main.get_command(app)
FENCE = re.compile(r"^```(?:console|bash|sh|shell|)\s*\n(.*?)^```", re.MULTILINE | re.DOTALL)


def shown_commands(text: str) -> list[str]:
    """The `smodice` and `make` commands of the fenced blocks, continuation lines joined, comments and prompts cut."""
    found: list[str] = []
    for block in FENCE.findall(text):
        for line in block.replace("\\\n", " ").splitlines():
            for part in re.split(r"\s(?:;|&&|\|)\s", line.strip().removeprefix("$ ")):
                words = shlex.split(part, comments=True) if part.split(" ")[0] in ("smodice", "make") else []
                if len(words) > 1:
                    found.append(shlex.join(words))
    return found


PAGES = [page for page in ("README.md", "DIFFERENCES.md") if (ROOT / page).exists()]
COMMANDS = sorted({command for page in PAGES for command in shown_commands((ROOT / page).read_text())})


def test_the_reader_of_the_readme_finds_commands() -> None:
    text = "```console\n$ smodice run a.toml \\\n    --seeds 0,1  # two\nscore 90\n$ make demo\n```\n"
    assert shown_commands(text) == ["smodice run a.toml --seeds 0,1", "make demo"]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_shown_command_parses(command: str) -> None:
    program, *words = shlex.split(command)
    if program == "make":
        rules = "\n".join(
            path.read_text() for path in (ROOT / "Makefile", ROOT / "pipelines/rules.mk") if path.exists()
        )
        for target in (word for word in words if "=" not in word and not word.startswith("-")):
            assert re.search(rf"^(\.PHONY:.*\b)?{re.escape(target)}\b", rules, re.MULTILINE) or target in rules, target
        return
    if words[0].startswith("-"):
        return
    assert words[0] in GROUP.commands  # type: ignore[attr-defined]
    if "--help" in words or "-h" in words or re.search(r"[<\[…]|\.\.\.|\b[A-Z]{3,}\b", command):
        return  # a help page, or a placeholder for the reader to fill in
    GROUP.commands[words[0]].make_context(words[0], words[1:])  # type: ignore[attr-defined]
    for word in words:
        if word.endswith(".toml") and word.startswith("pipelines/"):
            assert (ROOT / word).exists(), f"{word} does not exist"
