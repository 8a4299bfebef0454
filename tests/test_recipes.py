"""The shipped recipes: the paper's compositions, and a make target for each."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from smodice_cli import sources
from smodice_cli.errors import ConfigError
from smodice_cli.recipes import read_recipe
from smodice_cli.stages.build_dataset import Config

PIPELINES = Path(__file__).parents[1] / "pipelines"
TASKS = sorted(path for sort in ("observations", "mismatched") for path in (PIPELINES / sort).glob("*.toml"))
KITCHEN = [
    PIPELINES / "observations/kitchen.toml",
    PIPELINES / "examples/kettle.toml",
    PIPELINES / "examples/microwave.toml",
]
ANTMAZE = [
    *(path for path in TASKS if path.stem.startswith("antmaze")),
    PIPELINES / "examples" / "antmaze-examples.toml",
]
LOCOMOTION = [path for path in TASKS if path not in [*KITCHEN, *ANTMAZE]]


@pytest.mark.parametrize("path", LOCOMOTION, ids=lambda path: path.stem)
@pytest.mark.parametrize("data", ["", "d4rl"])
def test_recipe_has_the_papers_composition(path: Path, data: str) -> None:
    config = Config(**read_recipe(path, data).settings["dataset"])
    experts, random = (sources.parse(text) for text in config.offline)
    assert experts.count == (100 if config.env == "walker2d" else 200)
    assert experts.selection == "episodes"
    expert = sources.parse(config.expert[0])
    assert (expert.selection, expert.count) == ("traj", 0)
    if data:
        assert (experts.name, random.name) == (f"{config.env}-expert-v2", f"{config.env}-random-v2")
    else:
        assert random.count is not None
        assert 999_000 <= random.count <= 1_000_000
    mismatched = path.parent.name == "mismatched"
    assert expert.name.startswith(path.stem if mismatched else config.env)


@pytest.mark.parametrize("path", ANTMAZE, ids=lambda path: f"{path.parent.stem}-{path.stem}")
@pytest.mark.parametrize("data", ["", "d4rl"])
def test_antmaze_recipe_has_the_papers_composition(path: Path, data: str) -> None:
    config = Config(**read_recipe(path, data).settings["dataset"])
    walks, random, *backwards = (sources.parse(text) for text in config.offline)
    assert config.env == "antmaze-umaze"
    assert walks.name == ("antmaze-umaze-v2" if data else config.env)
    assert random.name == f"{config.env}-random"
    assert [source.name for source in backwards] == [f"{config.env}-reversed"] * (path.stem == "antmaze-diverse")
    assert sum(source.count or 0 for source in (walks, *backwards)) == pytest.approx(350_000, rel=0.01)
    assert random.count == pytest.approx(1_000_000, rel=0.01)
    expert = sources.parse(config.expert[0])
    own = ("traj", 8 if data else 1)
    experts = {"observations": own, "mismatched": ("traj", 0), "examples": ("success", 500)}
    assert (expert.selection, expert.count) == experts[path.parent.name]
    assert (expert.name == "pointmass-umaze") == (config.expert_dims == "0:2") == (path.parent.name == "mismatched")


def test_unknown_choice_of_data_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"no section \[dataset\.d4lr\]"):
        read_recipe(LOCOMOTION[0], "d4lr")


def test_every_make_target_has_its_recipe() -> None:
    rules = (PIPELINES / "rules.mk").read_text()
    named = set(re.findall(r"^(?:OBSERVATIONS|MISMATCHED|EXAMPLES) := (.*)$", rules, re.M))
    assert {name for line in named for name in line.split()} == {
        path.stem for path in [*LOCOMOTION, *KITCHEN, *ANTMAZE]
    }


@pytest.mark.parametrize("path", KITCHEN, ids=lambda path: path.stem)
@pytest.mark.parametrize("data", ["", "d4rl", "human"])
def test_kitchen_recipe_has_the_papers_composition(path: Path, data: str) -> None:
    config = Config(**read_recipe(path, data).settings["dataset"])
    (offline,), (expert,) = (list(map(sources.parse, texts)) for texts in (config.offline, config.expert))
    assert config.env == ("kitchen-mixed" if path.stem == "kitchen" else f"kitchen-{path.stem}")
    assert offline.scheme == {"": "sim", "d4rl": "d4rl", "human": "file"}[data]
    assert offline.count == (None if data else 130_000)
    assert expert.selection == ("traj" if path.stem == "kitchen" else "success")
    assert expert.name == {"": config.env, "d4rl": "kitchen-mixed-v0", "human": offline.name}[data].replace(
        *(("mixed", "complete") if path.stem == "kitchen" else ("", ""))
    )
