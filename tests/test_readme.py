"""What the documentation tells people to type works: the commands and the Python of each page are run, in order, in an
empty folder, with small sizes put in.

A block that cannot run here (it needs a robot, or a package of others) stands below a line <!-- not run: why -->, which
readers do not see. A `make` target must be one that make knows, and the commands that it would run must parse; nothing
of it is run.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from conftest import Outcome, smodice
from recordings import write_file
from small import small_flags, small_pipelines, small_python, small_sources

from smodice_cli.commands import app

ROOT = Path(__file__).parents[1]
GROUP: Any = typer.main.get_command(app)
PAGES = [ROOT / "README.md", ROOT / "DIFFERENCES.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^(<!-- not run: .+ -->\n)?```(\w*)\s*\n(.*?)^```", re.MULTILINE | re.DOTALL)
SHELL = ("console", "bash", "sh", "shell", "")
INLINE = re.compile(r"`((?:smodice|make)\s[^`]+)`")
PLACEHOLDER = re.compile(r"[<\[…]|\.\.\.|\b[A-Z]{3,}\b(?!=)")  # for the reader to fill in
NOT_RUN = {
    "train-expert": "it needs JAX and hours",
    "--source": "it needs files of D4RL's",
    "--on": "it needs a cluster",
}
FROM_ELSEWHERE = ("d4rl:", "minari:")  # sources that are downloaded


# --- reading ----------------------------------------------------------------------------------------------------------


def steps(text: str, run: bool = False) -> list[str]:
    """Commands and blocks of Python in their order; with `run`, only those of blocks that can be run."""
    found: list[str] = []
    for not_run, language, block in FENCE.findall(text):
        if run and not_run:
            continue
        if language in SHELL:
            found += _commands(block)
        elif language == "python":
            found.append(block)
    return found


def shown_commands(text: str) -> list[str]:
    """The `smodice` and `make` commands of the fenced blocks."""
    return [step for step in steps(text) if is_command(step)]


def is_command(step: str) -> bool:
    return step.startswith(("smodice ", "make ")) and "\n" not in step


def _commands(block: str) -> list[str]:
    """The `smodice` and `make` commands of a block, continuation lines joined, comments and prompts cut."""
    found: list[str] = []
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
        "```console\n$ smodice run a.toml#7 \\\n    --seeds 0,1  # two\nscore 90\n$ make demo\n```\n"
        "or `smodice\nenvs`\n"
        "```python\nprint(1)\n```\n<!-- not run: it needs a robot -->\n```bash\nsmodice status robot\n```\n"
    )
    commands = ["smodice run 'a.toml#7' --seeds 0,1", "make demo"]
    assert shown_commands(text) == [*commands, "smodice status robot"]
    assert steps(text, run=True) == [*commands, "print(1)\n"]
    assert mentioned_commands(text) == ["smodice envs"]
    assert len(shown_commands(PAGES[0].read_text())) > 8


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
            assert list(ROOT.glob(word)), f"{word} does not exist"


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


def prepare(folder: Path) -> None:
    """What a reader has: the recipes, here small ones, and recordings of a robot."""
    small_pipelines(folder / "pipelines")
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
    return smodice(*map(small_sources, words), *small_flags(words))


def run_python(code: str) -> str:
    """Run a block of Python in the current folder, its trainings small; returns what went wrong."""
    try:
        exec(compile(small_python(code), "a block of Python", "exec"), {"__name__": "page"})
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def run_page(text: str) -> dict[str, str]:
    """Run what a page shows in the current folder, in order; returns what fails, with what it says."""
    failed = {}
    for step in dict.fromkeys(steps(text, run=True)):
        if not is_command(step):
            said = run_python(step)
        elif step.startswith("make ") or reason_not_to_run(shlex.split(step)):
            continue
        else:
            outcome = run_small(step)
            said = outcome.stderr if outcome.code else ""
        if said:
            failed[step] = said
    return failed


def changed_commands(text: str, right: str, wrong: str) -> list[str]:
    """The commands of a page that a mistake in it changes, as they then read."""
    found = [command for command in shown_commands(text.replace(right, wrong)) if command not in shown_commands(text)]
    assert found, f"the page no longer says {right!r}"
    return found


def run_mistake(text: str, right: str, wrong: str) -> dict[str, str]:
    """What fails of a page with a mistake in it, where the page itself has been run before."""
    return run_page("\n".join(["```", *changed_commands(text, right, wrong), "```", ""]))


MISTAKES = [  # a page, what it says, and what a tired author might have written
    ("pipeline.md", "smodice train-disc ", "smodice train-dics "),
    ("pipeline.md", "--expert sim:pointmass-4direction", "--experts sim:pointmass-4direction"),
    ("pipeline.md", "#success=300", "#sucess=300"),
    ("pipeline.md", "train-value  --disc  runs/pm/disc.safetensors", "train-value --disc runs/pm/dics.safetensors"),
    ("pipeline.md", "inspect      runs/pm/weights.h5", "inspect runs/pm/weight.h5"),
    ("pipeline.md", "--episodes 100 --json", "--episodes many --json"),
    ("pipeline.md", "4direction --seeds 0,1,2", "4direction --seeds 0,1,x"),
    ("pipeline.md", "run pointmass-4direction", "run pointmas-4direction"),
    ("baselines.md", "--algo smodice,oril,rce", "--algo smodice,oril,ecr"),
    ("README.md", "--offline arm.hdf5", "--offline leg.hdf5"),
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_a_page_shows_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = page.read_text()
    prepare(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("smodice_cli.recipes.pipelines", lambda: tmp_path / "pipelines")
    assert run_page(text) == {}
    mistakes = [(right, wrong) for name, right, wrong in MISTAKES if name == page.name]
    assert [mistake for mistake in mistakes if not run_mistake(text, *mistake)] == [], "not noticed"


def test_the_readme_is_short_and_its_links_lead_somewhere() -> None:
    assert len(PAGES[0].read_text().splitlines()) < 130
    for page in PAGES:
        for place in re.findall(r"\]\((?!https?:|#)([^)#]+)", FENCE.sub("", page.read_text())):
            assert (page.parent / place).exists(), f"{page.name} leads to {place}"


@pytest.mark.parametrize(
    ("page", "right", "wrong"),
    [
        ("docs/baselines.md", "make comparison SEEDS=0,1,2 ", "make comparisons SEEDS=0,1,2 "),
        ("docs/baselines.md", "make sanity SEEDS=0,1,2 ", "make sanity SEED=0,1,2 "),
        ("README.md", "make setup ", "make README.md "),
        ("README.md", "make test ", "make nothing "),
    ],
)
def test_a_target_that_does_not_exist_is_noticed(page: str, right: str, wrong: str) -> None:
    (mistaken,) = changed_commands((ROOT / page).read_text(), right, wrong)
    with pytest.raises(AssertionError, match="make knows no"):
        check_form(mistaken)
