"""What the documentation tells people to type works: its commands are run, in order, with small sizes put in.

A `make` target must be one that make knows, and the commands that it would run must parse; nothing of it is run.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from conftest import Outcome, smodice
from recordings import write_file

from smodice_cli.commands import app

ROOT = Path(__file__).parents[1]
GROUP: Any = typer.main.get_command(app)
PAGES = [ROOT / "README.md", ROOT / "DIFFERENCES.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(?:console|bash|sh|shell|)\s*\n(.*?)^```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`((?:smodice|make)\s[^`]+)`")
PLACEHOLDER = re.compile(r"[<\[…]|\.\.\.|\b[A-Z]{3,}\b(?!=)")  # for the reader to fill in
NOT_RUN = {"train-expert": "it needs JAX and hours", "--source": "it needs files of D4RL's"}
FROM_ELSEWHERE = ("d4rl:", "minari:")  # sources that are downloaded
FEW = ("--steps", "20", "--set", "hidden=8", "--set", "batch=8")
SMALL = {
    **dict.fromkeys(("train-disc", "train-value", "train-policy"), FEW),
    "run": ("--seeds", "0"),
    "eval": ("--episodes", "2", "--threads", "1"),
    "select-f": ("--steps", "20", "--policy-steps", "20"),
}


# --- reading ----------------------------------------------------------------------------------------------------------


def shown_commands(text: str) -> list[str]:
    """The `smodice` and `make` commands of the fenced blocks, continuation lines joined, comments and prompts cut."""
    found: list[str] = []
    for block in FENCE.findall(text):
        for line in block.replace("\\\n", " ").splitlines():
            for part in re.split(r"\s(?:;|&&|\|)\s", line.strip().removeprefix("$ ")):
                # A comment begins with a word; shlex would end sim:ENV#300 at its #.
                words = shlex.split(re.sub(r"\s#.*", "", part)) if part.split(" ")[0] in ("smodice", "make") else []
                if len(words) > 1:
                    found.append(shlex.join(words))
    return found


def mentioned_commands(text: str) -> list[str]:
    """The commands in backticks within a sentence or a table."""
    return [shlex.join(shlex.split(found)) for found in INLINE.findall(FENCE.sub("", text))]


def test_the_reader_of_pages_finds_commands() -> None:
    text = (
        "```console\n$ smodice run a.toml#7 \\\n    --seeds 0,1  # two\nscore 90\n$ make demo\n```\nor `smodice\nenvs`"
    )
    assert shown_commands(text) == ["smodice run 'a.toml#7' --seeds 0,1", "make demo"]
    assert mentioned_commands(text) == ["smodice envs"]
    assert len(shown_commands(PAGES[0].read_text())) > 10


# --- make -------------------------------------------------------------------------------------------------------------


def make(*words: str) -> subprocess.CompletedProcess[str]:
    """make, as from a shell of its own, with flags that keep it from doing anything."""
    environment = {
        name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")
    }
    return subprocess.run(["make", *words], cwd=ROOT, env=environment, capture_output=True, text=True)


@cache
def known_to_make() -> tuple[set[str], set[str]]:
    """Targets and variables, as make has them after reading its files."""
    told = make("--print-data-base", "--question", "--no-builtin-rules", "--no-builtin-variables", ":").stdout
    targets = re.findall(r"(?<!# Not a target:\n)^([\w./-]+):(?!=)", told, re.MULTILINE)
    return set(targets), set(re.findall(r"^(\w+) :?[:?]?=", told, re.MULTILINE))


def check_make(words: list[str]) -> None:
    """Every target is one of make's own, what it depends on is there, and its commands parse."""
    targets, variables = known_to_make()
    for word in words:
        name, is_variable, _ = word.partition("=")
        assert name in (variables if is_variable else targets), f"make knows no {name}"
    planned = make("--dry-run", *words)
    assert planned.returncode == 0, planned.stderr
    for line in planned.stdout.replace("\\\n", " ").splitlines():
        if line.startswith(".venv/bin/smodice "):
            check_parses(shlex.split(line)[1:])


def test_make_is_understood() -> None:
    targets, variables = known_to_make()
    assert {"demo", "test", "hopper", "comparison", "comparison-hopper", "ablation"} <= targets
    assert not {"README.md", "pyproject.toml", "pipelines/observations/hopper.toml", "nothing"} & targets
    assert {"SEEDS", "SOURCE"} <= variables


# --- parsing ----------------------------------------------------------------------------------------------------------


def check_parses(words: list[str]) -> None:
    """The command exists, its flags are its own, and the files of this repository that it names are there."""
    assert words[0] in GROUP.commands, f"there is no smodice {words[0]}"
    if len(words) > 1 and "--help" not in words:
        GROUP.commands[words[0]].make_context(words[0], words[1:])
    for word in words:
        if word.startswith(("pipelines/", "smodice_cli/")):
            assert (ROOT / word).exists(), f"{word} does not exist"


def check_form(command: str) -> None:
    """A command as it is written, nothing run."""
    program, *words = shlex.split(command)
    if program == "make":
        check_make(words)
    elif not words[0].startswith("-") and not PLACEHOLDER.search(command):
        check_parses(words)


EVERY = sorted(
    {found for page in PAGES for read in (shown_commands, mentioned_commands) for found in read(page.read_text())}
)


@pytest.mark.parametrize("command", EVERY)
def test_a_command_of_the_documentation_parses(command: str) -> None:
    check_form(command)


# --- running ----------------------------------------------------------------------------------------------------------


def reason_not_to_run(words: list[str]) -> str:
    """Why a test cannot run a command; empty where it can."""
    downloads = [word for word in words if word.removeprefix("--").startswith(FROM_ELSEWHERE)]
    return next((NOT_RUN[word] for word in words if word in NOT_RUN), "it downloads" if downloads else "")


def small_sources(text: str) -> str:
    """`sim:` sources cut down to a second's work."""
    fewer = re.sub(r"(sim:[^\"\s#]+)#\d+", r"\1#600", text)
    return re.sub(
        r"(sim:[^\"\s#]+#(?:success|states|episodes))=\d+", lambda m: f"{m[1]}={2 if 'epi' in m[1] else 20}", fewer
    )


def small_recipe(text: str) -> str:
    """A shipped recipe with few data, few steps, small networks and two episodes, and otherwise what it was."""
    settings = tomllib.loads(small_sources(text))
    for section in ("disc", "value", "policy"):
        own = settings.setdefault(section, {})
        for part in (own, *(part for part in own.values() if isinstance(part, dict))):
            part |= {"steps": 20, "hidden": 8, "batch": 8}
    settings.setdefault("eval", {}).update(episodes=2, curve_episodes=1)
    return toml(settings)


def toml(settings: dict[str, Any], name: str = "") -> str:
    tables = {key: value for key, value in settings.items() if isinstance(value, dict)}
    lines = [f"{key} = {json.dumps(value)}" for key, value in settings.items() if key not in tables]
    below = [toml(table, f"{name}.{key}".lstrip(".")) for key, table in tables.items()]
    return "\n".join([f"[{name}]" if name else "", *lines, *below]) + "\n"


def prepare(folder: Path) -> None:
    """What a reader has: the recipes, here small ones, and recordings of a robot."""
    for path in (ROOT / "pipelines").rglob("*.toml"):
        copy = folder / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(small_recipe(path.read_text()) if path.parent != ROOT / "pipelines" else path.read_text())
    for name in ("arm.hdf5", "demonstration.hdf5"):
        write_file(folder / name, width=7)
    rng = np.random.default_rng(0)
    lines = [f"{row // 10},{','.join(map(str, rng.normal(size=4)))}" for row in range(30)]
    (folder / "arm.csv").write_text("\n".join(["episode,joint_0,joint_1,motor_0,motor_1", *lines]) + "\n")


def run_small(command: str) -> Outcome:
    """Run a `smodice` command in the current folder, planned as it is written, then done with small sizes."""
    words = shlex.split(command)[1:]
    if words[0] in GROUP.commands and any("--dry-run" in option.opts for option in GROUP.commands[words[0]].params):
        planned = smodice(*words, "--dry-run")
        if planned.code:
            return planned
    return smodice(*map(small_sources, words), *SMALL.get(words[0], ()))


def run_page(text: str) -> dict[str, str]:
    """Run the commands of a page in the current folder, in order; returns those that fail, with what they say."""
    failed = {}
    for command in dict.fromkeys(shown_commands(text)):
        if command.startswith("smodice ") and not reason_not_to_run(shlex.split(command)):
            outcome = run_small(command)
            if outcome.code:
                failed[command] = outcome.stderr
    return failed


def changed_commands(text: str, right: str, wrong: str) -> list[str]:
    """The commands of a page that a mistake in it changes, as they then read."""
    found = [command for command in shown_commands(text.replace(right, wrong)) if command not in shown_commands(text)]
    assert found, f"the page no longer says {right!r}"
    return found


def run_mistake(text: str, right: str, wrong: str) -> dict[str, str]:
    """What fails of a page with a mistake in it, where the page itself has been run before."""
    return run_page("\n".join(["```", *changed_commands(text, right, wrong), "```", ""]))


MISTAKES = [
    ("smodice train-disc ", "smodice train-dics "),
    ("--expert sim:pointmass-4direction", "--experts sim:pointmass-4direction"),
    ("#success=300", "#sucess=300"),
    ("train-value  --disc  runs/pm/disc.safetensors", "train-value --disc runs/pm/dics.safetensors"),
    ("inspect      runs/pm/weights.h5", "inspect runs/pm/weight.h5"),
    ("--episodes 100 --json", "--episodes many --json"),
    ("4direction.toml --seeds 0,1,2", "4direction.toml --seeds 0,1,x"),
    ("run pipelines/examples/pointmass-4direction.toml --seeds", "run pipelines/pointmass-4direction.toml --seeds"),
    ("--algo smodice,oril,rce", "--algo smodice,oril,ecr"),
    ("file:arm.hdf5", "file:leg.hdf5"),
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_commands_of_a_page_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = page.read_text()
    prepare(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert run_page(text) == {}
    if page == PAGES[0]:
        assert [mistake for mistake in MISTAKES if not run_mistake(text, *mistake)] == [], "not noticed"


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("make comparison SEEDS=0,1,2 ", "make comparisons SEEDS=0,1,2 "),
        ("make sanity SEEDS=0,1,2 ", "make sanity SEED=0,1,2 "),
        ("make demo ", "make README.md "),
        ("make test ", "make nothing "),
    ],
)
def test_a_target_that_does_not_exist_is_noticed(right: str, wrong: str) -> None:
    (mistaken,) = changed_commands(PAGES[0].read_text(), right, wrong)
    with pytest.raises(AssertionError, match="make knows no"):
        check_form(mistaken)
