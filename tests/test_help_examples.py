"""The examples at the end of every help: they run in an empty folder, or say plainly what they need."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer
from conftest import Outcome, smodice
from small import SMALL, small_pipelines, small_sources

from smodice_cli.cli import DEMO
from smodice_cli.commands import app

GROUP = typer.main.get_command(app)
MARKED = "[dim]# "
CHAINS = ("run", "select-f")  # whole chains take long: of these only the first example is done, the others are planned


def examples(name: str) -> list[str]:
    """The examples of a command that are not marked."""
    epilog = GROUP.commands[name].epilog or ""  # type: ignore[attr-defined]
    lines = [line.strip() for line in epilog.splitlines()]
    return [line for line in lines if line.startswith("smodice ") and MARKED not in line]


def needs_demo(name: str) -> bool:
    return f"after: {DEMO}" in (GROUP.commands[name].epilog or "")  # type: ignore[attr-defined]


def run_small(example: str) -> Outcome:
    words = shlex.split(example)[1:]
    return smodice(*map(small_sources, words), *SMALL.get(words[0], ()))


ALONE = sorted(name for name in GROUP.commands if examples(name) and not needs_demo(name))  # type: ignore[attr-defined]
AFTER = sorted(name for name in GROUP.commands if needs_demo(name))  # type: ignore[attr-defined]


def test_every_command_has_an_example_that_is_not_marked() -> None:
    shown = {name for name, command in GROUP.commands.items() if not command.hidden}  # type: ignore[attr-defined]
    assert shown - {*ALONE, *AFTER} == {"train-expert"}  # which needs an extra and hours


@pytest.mark.parametrize("name", sorted(GROUP.commands))  # type: ignore[attr-defined]
def test_help_at_80_columns_cuts_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = smodice(name, "--help").stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert not any("…" in line for line in lines)


@pytest.mark.parametrize("name", ALONE)
def test_examples_run_in_an_empty_folder(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    small = small_pipelines(tmp_path / "pipelines")
    monkeypatch.setattr("smodice_cli.recipes.pipelines", lambda: small)
    first, *others = examples(name)
    planned = " --dry-run" if name in CHAINS else ""
    for example in [first, *(other + planned for other in others)]:
        outcome = run_small(example)
        assert outcome.code == 0, (example, outcome.stderr)


def test_the_other_examples_run_after_the_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    small = small_pipelines(tmp_path / "pipelines")
    monkeypatch.setattr("smodice_cli.recipes.pipelines", lambda: small)
    assert run_small(DEMO).code == 0
    failed = {}
    for name in AFTER:
        for example in examples(name):
            outcome = run_small(re.sub(r"--top \d+", "--top 2", example))
            if outcome.code:
                failed[example] = outcome.stderr
    assert failed == {}
