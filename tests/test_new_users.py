"""What people who came new to the tool stumbled over, and what they get instead."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import formats
import h5py
import numpy as np
import pytest
from conftest import refuse, succeed
from conftest import smodice as smodice_command
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


# --- logs as people have them -----------------------------------------------------------------------------------------


def hinted(code: int, *arguments: str | Path) -> str:
    """What a command that must fail says: its sentence, and the hint."""
    outcome = smodice_command(*arguments)
    assert outcome.code == code, outcome.stderr
    assert "hint: " in outcome.stderr
    return outcome.stderr


def write_table(path: Path, columns: dict[str, Any]) -> Path:
    lines = [",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True))]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("name", ["run", "Trial", "rollout_id", "ep", "attempt no", "recording"])
def test_columns_that_number_episodes_have_many_names(name: str, tmp_path: Path) -> None:
    columns = formats.columns_of(ARM)
    table = write_table(tmp_path / "arm.csv", {name: columns.pop("episode"), **columns})
    told = succeed("inspect", table, "--json").json
    assert told["guessed"][-2:] == ["--episode-column", name]
    assert told["episodes"] == len(ARM.states)
    assert name not in told["state_names"]
    flags = ("--env", "data", "--state-columns", "joint_*", "--action-columns", "action_*", "--out", tmp_path / "d.h5")
    said = hinted(3, "build-dataset", *flags, "--offline", table, "--expert", table)
    assert f"--episode-column {name}" in said


def test_names_of_a_state_are_not_taken_for_numbers_of_episodes(tmp_path: Path) -> None:
    columns = {"run": ARM.episode(), **{name: ARM.flat()[0][:, 0] for name in ("running_speed", "trial_error", "ep_x")}}
    told = succeed("inspect", write_table(tmp_path / "arm.csv", columns), "--json").json
    assert told["state_names"] == ["running_speed", "trial_error", "ep_x"]


def test_episodes_that_have_names_must_be_numbered(tmp_path: Path) -> None:
    columns = formats.columns_of(ARM)
    table = write_table(tmp_path / "arm.csv", columns | {"episode": [f"alice-{n}" for n in columns["episode"]]})
    told = succeed("inspect", table, "--episode-column", "episode", "--json").json
    assert "'episode' holds text" in told["problem"]
    assert "number the episodes" in told["hint"]


@pytest.mark.parametrize("form", ["npz", "csv"])
@pytest.mark.parametrize("name", ["dones", "is_last"])
def test_marks_of_ends_that_nobody_has_named_are_asked_about(form: str, name: str, tmp_path: Path) -> None:
    states, actions, ends = ARM.flat()
    if form == "npz":
        path, keys = tmp_path / "log.npz", "observations=obs,actions=acts"
        np.savez(path, obs=states, acts=actions, **{name: ends})
    else:
        columns = {f"{which}_{i}": array[:, i] for which, array in (("q", states), ("cmd", actions)) for i in range(2)}
        path, keys = write_table(tmp_path / "log.csv", columns | {name: ends.astype(int)}), ""
    told = succeed("inspect", path, "--json").json
    assert f"a column '{name}', and nothing says whether it marks" in told["problem"]
    found = re.search(r"--keys (\S+) \(they are cut there\)", told["hint"])
    assert found is not None
    assert found[1] == ",".join(filter(None, [keys, f"timeouts={name}"]))
    for mark in ("timeouts", "terminals"):
        assert succeed("inspect", path, "--keys", f"{mark}={name}", "--json").json["episodes"] == len(ARM.states)


def test_columns_that_only_sound_like_marks_are_left_alone(tmp_path: Path) -> None:
    states, actions, ends = ARM.flat()
    columns = {"observations": states, "actions": actions}
    for name, column in (("last", states[:, 0]), ("done", ends & False), ("end", np.array([1]))):
        np.savez(tmp_path / "log.npz", **columns, **{name: column})
        assert "problem" not in succeed("inspect", tmp_path / "log.npz", "--json").json
    np.savez(tmp_path / "log.npz", **columns, timeouts=ends, dones=ends)
    assert succeed("inspect", tmp_path / "log.npz", "--json").json["episodes"] == len(ARM.states)


def test_arrays_in_memory_with_marks_of_another_name() -> None:
    states, actions, ends = ARM.flat()
    with pytest.raises(smodice.SmodiceError) as caught:
        smodice.build_dataset({"observations": states, "actions": actions, "dones": ends}, states)
    assert "timeouts where episodes are cut" in caught.value.hint


def test_an_expert_of_states_alone_is_used_as_inspect_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    formats.npz(Path("arm.npz"), ARM)
    np.savez("landed.npz", states=ARM.states[0])
    said = succeed("inspect", "landed.npz").stdout
    single = "--expert 'landed.npz#states' --expert-keys states"
    assert f"or, of single states:  {single}" in said
    given = ["--env", "data", "--offline", "arm.npz", *formats.KEYS, "--out", "run/dataset.h5"]
    assert "--expert-keys NAME" in hinted(3, "build-dataset", *given, "--expert", "landed.npz")
    succeed("build-dataset", *given, "--expert", "landed.npz#states", "--expert-keys", "states")
    with h5py.File("run/dataset.h5") as file:
        assert file["expert/observations"].shape == ARM.states[0].shape
    said = hinted(3, "build-dataset", *given, "--expert", "landed.npz#states=300", "--expert-keys", "states")
    assert f"hint: #states={len(ARM.states[0])}, or #states for all" in said


# --- wrong turns ------------------------------------------------------------------------------------------------------


def test_a_recording_in_the_place_of_a_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a shell makes of --offline *.csv."""
    monkeypatch.chdir(tmp_path)
    for name in ("alice.csv", "bob.csv"):
        formats.write_csv(Path(name), ARM)
    said = hinted(4, "run", "--env", "data", "--offline", "alice.csv", "bob.csv", "--expert", "alice.csv")
    assert "bob.csv is no recipe" in said
    assert "a pattern in quotes" in said


def test_data_without_an_environment(tmp_path: Path) -> None:
    assert "--env data" in hinted(2, "run", "--offline", tmp_path / "arm.csv", "--expert", tmp_path / "arm.csv")
    assert "smodice recipes" in hinted(2, "run")


def test_an_environment_of_ones_own(tmp_path: Path) -> None:
    for name in ("gym:Pond-v0", "gym:pond:Pond-v0"):
        said = hinted(4, "run", "--env", name, "--offline", "a.npz", "--expert", "a.npz", "--out", tmp_path / "run")
        assert "gym:MODULE:ID" in said
        assert "PYTHONPATH=." in said


def test_an_artifact_of_another_kind_is_refused_with_a_way_on(run: Path) -> None:
    said = hinted(3, "export", run / "seed0/policy.safetensors", "--to", "csv")
    assert "is a form of weights" in said
    assert "its own are: --to onnx" in said
    assert f"smodice status {run / 'seed0'}" in hinted(3, "eval", "--policy", run / "seed0/disc.safetensors")


def test_a_result_is_short_to_read(tmp_path: Path) -> None:
    states, actions = ARM.states[0], ARM.actions[0]
    data = smodice.build_dataset([{"observations": states, "actions": actions}], states, out=tmp_path / "dataset.h5")
    assert repr(data) == f"Result(done: {tmp_path / 'dataset.h5'})"
