"""The shipped recipes of the locomotion tasks: the paper's compositions, and a make target for each."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from smodice_cli import sources
from smodice_cli.errors import ConfigError
from smodice_cli.recipes import read_recipe
from smodice_cli.stages.build_dataset import Config

PIPELINES = Path(__file__).parents[1] / "pipelines"
LOCOMOTION = sorted([*(PIPELINES / "observations").glob("*.toml"), *(PIPELINES / "mismatched").glob("*.toml")])


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


def test_unknown_choice_of_data_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"no section \[dataset\.d4lr\]"):
        read_recipe(LOCOMOTION[0], "d4lr")


def test_every_make_target_has_its_recipe() -> None:
    rules = (PIPELINES / "rules.mk").read_text()
    named = set(re.findall(r"^(?:OBSERVATIONS|MISMATCHED) := (.*)$", rules, re.M))
    assert {name for line in named for name in line.split()} == {path.stem for path in LOCOMOTION}
