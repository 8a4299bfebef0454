"""The score on recordings: against a slow reading of its definition, on trajectories that the policy never saw."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import formats
import numpy as np
import pytest
from conftest import TINY, succeed, write_recipe
from formats import Arm

from smodice_cli import artifacts
from smodice_cli.algos.acting import NumpyPolicy
from smodice_cli.data import Dataset

ROOT = Path(__file__).parents[1]


def arm(episodes: int = 20) -> Arm:
    """An arm whose actions follow from its states."""
    found = Arm.of((25,) * episodes)
    turn = np.array([[0.3, -0.2], [0.1, 0.3], [-0.3, 0.2]], np.float32)
    return Arm(found.states, [np.tanh(part @ turn).astype(np.float32) for part in found.states])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """smodice and bc on recordings, which a recipe names."""
    folder = tmp_path_factory.mktemp("recorded")
    path = formats.lerobot(folder / "arm", arm())
    data = {"env": "data", "offline": [str(path)], "expert": [f"{path}#traj=0"]}
    steps = {"policy": {"steps": 400, "hidden": 32, "batch": 64}, "eval": {}}
    recipe = write_recipe(folder / "r.toml", TINY | steps | {"dataset": data})
    outcome = succeed("run", recipe, "--algo", "smodice", "--out", folder / "run")
    assert "action error" in outcome.stdout
    assert 'smodice.load_policy("' in outcome.stdout
    succeed("run", recipe, "--algo", "bc", "--out", folder / "run", "--quiet")
    return folder / "run"


def score_of(path: Path) -> dict[str, Any]:
    return artifacts.read_payload(path)["score"]


def test_the_error_is_that_of_its_definition(run: Path) -> None:
    policy = artifacts.load(run / "seed0/policy.safetensors", "policy")
    data = Dataset.of(artifacts.load(run / "dataset.h5", "dataset"))
    w = artifacts.load(run / "seed0/weights.h5", "weights").arrays["w"]
    held = policy.header.metrics["held_out"]
    assert len(held) == 2
    act, episode = NumpyPolicy(policy.arrays).act, data.episode_of_row()
    variance = data["actions"][~np.isin(episode, held)].astype(np.float64).var(axis=0)
    total = mass = 0.0
    for row in np.flatnonzero(np.isin(episode, held)):
        away = act(data["observations"][row]) - data["actions"][row]
        total += w[row] * float(np.mean(away**2 / variance))
        mass += w[row]
    score = score_of(run / "seed0/eval.json")
    assert score["action_error"] == pytest.approx(total / mass, rel=1e-4)
    low, high = score["interval_95"]
    assert low <= score["action_error"] <= high
    assert (score["trajectories"], score["rows"], score["held_out"], score["weighted"]) == (2, 48, True, True)


def test_it_tells_a_policy_from_the_mean_action(run: Path) -> None:
    score = score_of(run / "seed0/eval.json")
    assert score["beside"]["mean action"]["error"] == pytest.approx(1.0, abs=0.5)
    assert score["action_error"] < score["beside"]["mean action"]["error"]
    assert 0 <= score["expert_far"] <= 1


def test_bc_stands_beside_where_it_was_run(run: Path) -> None:
    """On the same trajectories, under the same weights, as bc's own score says."""
    told = succeed("eval", "--policy", run / "seed0/policy.safetensors", "--json").json
    assert told["reason"] == "its bc changed"
    own = score_of(run / "seed0/bc/eval.json")
    assert told["score"]["beside"]["bc"]["error"] == pytest.approx(own["action_error"])
    assert "action error" in succeed("inspect", run / "seed0/eval.json").stdout.replace(
        "error of the actions", "action error"
    )


def test_the_report_shows_it_and_no_empty_columns(run: Path, tmp_path: Path) -> None:
    told = succeed("report", run, "--html", tmp_path / "r.html", "--json").json
    assert told["runs"][0]["action_error"] == pytest.approx(score_of(run / "seed0/eval.json")["action_error"])
    page = (tmp_path / "r.html").read_text()
    assert "action error" in page
    assert "<th>success" not in page
    assert ">steady<" not in page


def test_without_trajectories_held_out_it_says_so(run: Path) -> None:
    value, out = run / "seed0/value.safetensors", run / "seed0/all.safetensors"
    succeed("train-policy", "--value", value, "--out", out, "--steps", "20", "--set", "hidden=8", "--set", "batch=8")
    assert "trajectories that it was trained on" in succeed("eval", "--policy", out).stdout


def test_how_well_it_ranks_can_be_asked_of_any_runs(finished_run: Path) -> None:
    command = [sys.executable, ROOT / "benchmarks/rank_offline.py", finished_run, "--json"]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    (result,) = found.values()
    assert result["policies"] > 2
    assert result["spearman"] is None or -1 <= result["spearman"] <= 1
