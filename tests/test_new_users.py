"""What people who came new to the tool stumbled over, and what they get instead."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import formats
import numpy as np
import pytest
from conftest import refuse, succeed
from formats import Arm
from recordings import policy_file

import smodice
from smodice_cli import recipes

ARM = Arm.of((25,) * 12)
FEW = [f"--set={section}.{name}" for section in ("disc", "value", "policy") for name in ("steps=20", "hidden=8")]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A run on recordings of two sources without rewards, and what it said."""
    folder = tmp_path_factory.mktemp("recorded")
    paths = [
        formats.d4rl(folder / f"{name}.hdf5", Arm.of((25,) * 6, seed=k)) for k, name in enumerate(("day", "night"))
    ]
    data = [word for path in paths for word in ("--offline", str(path))]
    outcome = succeed("run", "--env", "data", *data, "--expert", f"{paths[0]}#traj=0", *FEW, "--out", folder / "run")
    return folder / "run", outcome.stdout


@pytest.fixture
def run(recorded: tuple[Path, str], tmp_path: Path) -> Path:
    return Path(shutil.copytree(recorded[0], tmp_path / "run"))


# --- a run says what its weights are worth ----------------------------------------------------------------------------


def test_a_run_ends_with_the_verdict_on_its_weights(recorded: tuple[Path, str]) -> None:
    run, said = recorded
    told = succeed("inspect", run / "seed0/weights.h5", "--json").json["verdict"]
    *_, last = re.split(r"(?m)^(?=● weights)", said)
    assert last.startswith(f"● weights {told['level']}: ")
    kept = json.loads((run / "summary.json").read_text())["methods"][0]["weights"]["0"]
    assert kept["level"] == told["level"]
    assert kept["findings"] == [finding["text"] for finding in told["findings"]]
    assert all(text in last for text in kept["findings"])
    assert ("smodice inspect" in last) == bool(kept["findings"])


def test_weights_that_are_not_fit_to_train_on_are_named_last(run: Path, tmp_path: Path) -> None:
    from smodice_cli.commands.run import verdicts

    rows = [
        {"method": "smodice", "weights": {"0": {"level": "green", "path": "a", "findings": []}}},
        {"method": "chi2", "weights": {"0": {"level": "red", "path": "b c", "findings": ["one row holds all"]}}},
        {"method": "kl", "weights": {"1": {"level": "yellow", "path": "d", "findings": ["few rows"]}}},
        {"method": "bc", "weights": {}},
    ]
    said = verdicts([{"folder": "runs/x", "methods": rows}])
    assert [line for line in said if "●" in line] == [
        "[bold yellow]● weights yellow: look closer[/]  (kl, seed 1)",
        "[bold red]● weights red: not fit to train on[/]  (chi2, seed 0)",
    ]
    assert said[-1] == "  what to try:  smodice inspect 'b c'"
    assert verdicts([{"folder": "runs/x", "methods": rows[:1]}]) == ["[green]● weights green: healthy[/]"]
    assert verdicts([{"folder": "runs/x", "methods": rows[-1:]}]) == []


def test_a_report_tells_of_the_weights_and_of_recordings(recorded: tuple[Path, str], tmp_path: Path) -> None:
    run, _ = recorded
    told = succeed("report", run, "--csv", tmp_path / "r.csv", "--json").json["runs"][0]
    assert told["weights"] == succeed("inspect", run / "seed0/weights.h5", "--json").json["verdict"]["level"]
    assert f"error {told['action_error']:.3f}" in succeed("report", run, "--csv", tmp_path / "r.csv").stdout
    assert "scored on recordings" in refuse(2, "report", run, "--png", tmp_path / "r.png")


# --- what is not known is not claimed ---------------------------------------------------------------------------------


def test_sources_without_rewards_are_not_ranked_by_them(recorded: tuple[Path, str]) -> None:
    told = succeed("inspect", recorded[0] / "seed0/weights.h5", "--trajectory", "0", "--json").json
    assert "no labels" in told["expert"]["absent"]
    assert "return" not in told["trajectories"]["top"][0]
    assert "task_reward" not in told["trajectory"]
    said = succeed("inspect", recorded[0] / "seed0/weights.h5").stdout
    assert "highest return" not in said
    heading = next(line for line in said.splitlines() if line.startswith("trajectory "))
    assert heading.split() == ["trajectory", "source", "length", "mean", "weight", "share"]
    data = succeed("inspect", recorded[0] / "dataset.h5", "--json").json
    assert "return" not in data["sources"][0]


def test_without_held_out_trajectories_a_state_is_not_its_own_neighbour(run: Path) -> None:
    succeed("train-policy", "--value", run / "seed0/value.safetensors", *FEW[-2:], "--set", "holdout=0")
    score = succeed("eval", "--policy", run / "seed0/policy.safetensors", "--json").json["score"]
    assert not score["held_out"]
    assert score["distance"] > 0.1
    assert score["expert_far"] < 0.5
    assert score["beside"]["nearest neighbour"]["error"] > 0.1


def test_one_trajectory_has_no_neighbours(tmp_path: Path) -> None:
    states, actions = ARM.states[0], ARM.actions[0]
    data = smodice.build_dataset([{"observations": states, "actions": actions}], states, out=tmp_path / "dataset.h5")
    policy = smodice.train_policy(data, algo="bc", steps=20, hidden=8, batch=8)
    made = smodice.evaluate(policy)
    score = made.metrics
    assert "nearest neighbour" not in score["beside"]
    assert "expert_far" not in score
    succeed("inspect", made.path)


def test_a_film_of_recordings_is_refused_before_anything_is_done(run: Path) -> None:
    before = (run / "seed0/eval.json").stat().st_mtime_ns
    said = refuse(2, "eval", "--policy", run / "seed0/policy.safetensors", "--force", "--video", run / "film.gif")
    assert "has none" in said
    assert (run / "seed0/eval.json").stat().st_mtime_ns == before


# --- what lies in a folder --------------------------------------------------------------------------------------------


def test_status_knows_what_was_exported(run: Path) -> None:
    weights = run / "seed0/weights.h5"
    succeed("export", weights, "--to", "episodes", "--top", "2")
    assert state_of(run, "seed0/weights.json") == ("export", "ok")
    succeed("train-value", "--disc", run / "seed0/disc.safetensors", "--steps", "21", "--set", "hidden=8")
    assert "export it again" in state_of(run, "seed0/weights.json")[1]
    weights.unlink()
    assert "are not there" in state_of(run, "seed0/weights.json")[1]
    (run / "notes.json").write_text("{}")
    assert "was not written by smodice" in state_of(run, "notes.json")[1]


def state_of(run: Path, name: str) -> tuple[str, str]:
    (row,) = [row for row in succeed("status", run, "--json").json["artifacts"] if row["path"] == name]
    return row["kind"], row["state"]


def test_status_lists_what_killed_processes_left_before_it_is_removed(run: Path) -> None:
    left = run / "seed0" / ".policy.safetensors.lock"
    left.write_text("1")
    assert succeed("status", run, "--json").json["left_behind"] == ["seed0/.policy.safetensors.lock"]
    assert "--clean removes it" in succeed("status", run).stdout
    assert left.exists()
    succeed("status", run, "--clean")
    assert succeed("status", run, "--json").json["left_behind"] == []


# --- names ------------------------------------------------------------------------------------------------------------


def test_no_two_recipes_have_the_same_name() -> None:
    assert len(recipes.names()) == len(list(recipes.pipelines().glob("*/*.toml")))


@pytest.mark.parametrize(
    ("command", "column"), [("recipes", "recipe"), ("settings", "setting"), ("envs", "environment")]
)
def test_names_stay_whole_at_80_columns(command: str, column: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = succeed(command).stdout.splitlines()
    names = succeed(command, "--json").json
    assert {line.split()[0] for line in lines if line[:1].strip()} >= {column, *names}
    assert max(map(len, lines)) <= 80


def test_what_inspect_shows_fits_80_columns(recorded: tuple[Path, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    said = succeed("inspect", recorded[0] / "seed0/value.safetensors").stdout
    settings = said.partition("settings\n")[2].partition("\n\n")[0]
    assert "n_step" in settings
    assert all(len(line) <= 80 for line in settings.splitlines())
    curves = said.partition("over training\n")[2].partition("\n\n")[0].splitlines()
    assert len([line for line in curves if line.startswith("loss")]) == 1
    assert not any(line.startswith(" ") and "▁" in line for line in curves)


# --- a policy on a robot ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ([0.0, np.nan, 0.0, 0.0], "NaN or infinite"),
        ([[0.0] * 4, [0.0, 0.0, -np.inf, 0.0]], "NaN or infinite"),
        ([0.0] * 3, "states of 4 dimensions"),
        (0.0, "states of 4 dimensions"),
        (np.zeros((2, 2, 4)), "states of 4 dimensions"),
        ("left", "takes states of 4 numbers"),
        ({"joints": 1}, "takes states of 4 numbers"),
        ([[0.0] * 4, [0.0]], "takes states of 4 numbers"),
    ],
)
def test_a_policy_refuses_what_is_no_state(state: Any, words: str, tmp_path: Path) -> None:
    policy = smodice.load_policy(policy_file(tmp_path / "policy.safetensors", "pointmass-4direction"))
    with pytest.raises(smodice.SmodiceError, match=words):
        policy.act(state)
    assert policy.act(np.zeros((0, 4))).shape == (0, 2)
    assert np.isfinite(policy.act([1e6, -1e6, 0, 0])).all()
