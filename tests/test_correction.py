"""Corrections (D55): what the rows of all data say about a state beside a recorded one, and whether it is believed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import SHARED_DATA, succeed

from smodice_cli import artifacts
from smodice_cli.algos import clone, correction
from smodice_cli.data import Dataset, moments
from smodice_cli.training import fit

LENGTH = 40
STEP = np.array([[0.1, 0.02, 0.0], [0.0, 0.1, 0.0]])  # what two actions do to two places; the third dimension rests


def dataset(states: np.ndarray, actions: np.ndarray, next_states: np.ndarray) -> Dataset:
    """Episodes of LENGTH rows."""
    mean, std = moments(states)
    columns = {
        "observations": states.astype(np.float32),
        "actions": actions.astype(np.float32),
        "next_observations": next_states.astype(np.float32),
        "mean": mean,
        "std": std,
        "action_low": np.full(2, -2.0, np.float32),
        "action_high": np.full(2, 2.0, np.float32),
        "episode_offsets": np.arange(0, len(states) + 1, LENGTH),
    }
    return Dataset(columns, "data", [*range(states.shape[1])], False, ["a"])


def wandering(episodes: int, effect: np.ndarray = STEP, seed: int = 0) -> Dataset:
    """A cart that follows its actions, drawn at random."""
    rng = np.random.default_rng(seed)
    states, actions, after = [], [], []
    for _ in range(episodes):
        place = np.array([*rng.normal(size=2), 0.5])
        for _ in range(LENGTH):
            action = rng.uniform(-2, 2, 2)
            moved = place + action @ effect + np.array([0.01, 0.0, 0.0]) * place
            states.append(place)
            actions.append(action)
            after.append(moved)
            place = moved
    return dataset(*(np.array(column) for column in (states, actions, after)))


def test_a_corrected_action_leads_from_beside_to_the_same_next_state() -> None:
    data = wandering(30)
    found = correction.find(data)
    assert found is not None
    assert found.trusted
    assert found.explained > 0.999
    assert found.undone > 0.99
    place, action, beside = data["observations"][7], data["actions"][7], np.array([0.03, -0.02, 0.0])
    corrected = action + 2 * beside @ found.gain  # actions reach from -2 to 2, the gain is of actions in [-1, 1]
    moved = (place + beside) + corrected @ STEP + np.array([0.01, 0, 0]) * (place + beside)
    np.testing.assert_allclose(moved, data["next_observations"][7], atol=3e-4)


def test_a_dimension_at_rest_is_left_alone() -> None:
    found = correction.find(wandering(30))
    assert found is not None
    assert not found.gain[2].any()
    assert found.gain[:2].all()


def test_actions_that_do_nothing_are_not_believed() -> None:
    found = correction.find(wandering(30, effect=np.zeros_like(STEP)))
    assert found is not None
    assert not found.trusted


@pytest.mark.parametrize("episodes", [1, 2, 4, 5])
def test_one_trajectory_has_nothing_to_be_judged_by_and_two_have(episodes: int) -> None:
    assert (correction.find(wandering(episodes)) is None) == (episodes == 1)


def test_a_state_that_holds_the_last_action_explains_it_and_undoes_nothing() -> None:
    """x' = u: the next state tells the action, which nothing in the state before has a part in."""
    actions = np.random.default_rng(0).uniform(-2, 2, (20 * LENGTH, 2))
    found = correction.find(dataset(np.roll(actions, 1, axis=0), actions, actions))
    assert found is not None
    assert found.explained > 0.99
    assert found.undone < 0.1
    assert not found.trusted


def test_actions_that_never_differ_show_nothing() -> None:
    data = wandering(10)
    still = dict(data.arrays) | {"actions": np.ones_like(data["actions"])}
    assert correction.find(Dataset(still, "data", [0, 1, 2], False, ["a"])) is None


def test_very_wide_states_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(correction, "WIDEST", 2)
    assert correction.find(wandering(10)) is None


def test_the_absorbing_state_has_no_part() -> None:
    """Neither the step into it nor the loop in it, which stands in the last row of every episode here."""
    data = wandering(30)
    columns = dict(data.arrays)
    inside, after = np.zeros((data.rows, 1), bool), np.zeros((data.rows, 1), bool)
    inside[LENGTH - 1 :: LENGTH] = after[LENGTH - 1 :: LENGTH] = after[LENGTH - 2 :: LENGTH] = True
    for name, flag in (("observations", inside), ("next_observations", after)):
        columns[name] = np.append(np.where(flag, 0.0, columns[name]), flag, axis=1).astype(np.float32)
    columns["mean"], columns["std"] = np.append(columns["mean"], 0.0), np.append(columns["std"], 1.0)
    found = correction.find(Dataset(columns, "data", [0, 1, 2, 3], True, ["a"]))
    assert found is not None
    assert found.explained > 0.999
    assert not found.gain[3].any()


def follow(data: Dataset, noise: float, unit: float) -> float:
    """How far from its path a policy ends that was cloned on one path and begins beside it, in units."""
    weights = np.zeros(data.rows)
    weights[-LENGTH:] = 1.0
    config = clone.TrajectoryConfig(steps=1500, hidden=32, correction=noise)
    learner = clone.clone_rows(data, weights, config, torch.Generator().manual_seed(0), torch.device("cpu"))
    assert ("come back" in " ".join(learner.notes)) == bool(noise)
    fit(learner)
    path = data["observations"][-LENGTH:]
    place = path[0] + unit * np.array([0.0, 0.05, 0.0])
    for _ in range(LENGTH - 1):
        with torch.no_grad():
            action = 2 * learner.kept.mode(torch.tensor(place, dtype=torch.float32)[None])[0].numpy()
        place = place + unit * action @ STEP
    return float(np.linalg.norm(place[:2] - path[-1, :2])) / unit


@pytest.mark.parametrize("unit", [1.0, 0.01])
def test_a_policy_cloned_on_one_path_comes_back_to_it_with_corrections_alone(unit: float) -> None:
    """The path goes on in the first dimension only: it does not show what to do in the second."""
    wander = wandering(30)
    action = np.linalg.lstsq(STEP.T, np.array([0.05, 0.0, 0.0]), rcond=None)[0]
    path = np.array([[0.05 * t, 0.0, 0.5] for t in range(LENGTH + 1)])
    columns = ("observations", "actions", "next_observations")
    added = (path[:-1], np.tile(action, (LENGTH, 1)), path[1:])
    joined = {name: np.concatenate([wander[name], own]) for name, own in zip(columns, added, strict=True)}
    data = dataset(unit * joined["observations"], joined["actions"], unit * joined["next_observations"])
    assert follow(data, 0.0, unit) > 0.03  # it stays beside
    assert follow(data, 0.05, unit) < 0.015


def test_without_corrections_the_same_numbers_are_drawn_as_ever() -> None:
    data = wandering(30, effect=np.zeros_like(STEP))
    policies = []
    for noise in (0.0, 0.05):  # which these data do not show how to do
        config = clone.TrajectoryConfig(steps=20, hidden=8, correction=noise)
        learner = clone.clone_rows(data, None, config, torch.Generator().manual_seed(0), torch.device("cpu"))
        fit(learner)
        policies.append(learner.kept.state_dict())
    assert all(torch.equal(policies[0][name], policies[1][name]) for name in policies[0])


@pytest.mark.parametrize(("env", "trusted"), [("hopper", False), ("pointmass-4direction", True)])
def test_a_body_that_walks_is_left_alone_and_a_point_that_is_pushed_is_not(
    tmp_path: Path, env: str, trusted: bool
) -> None:
    sources = ["sim:hopper-expert#episodes=5", "sim:hopper-random#3000"] if env == "hopper" else [f"sim:{env}#3000"]
    expert = "sim:hopper-expert#traj=9" if env == "hopper" else f"sim:{env}#success=20"
    offline = [word for source in sources for word in ("--offline", source)]
    out = tmp_path / "dataset.h5"
    succeed("build-dataset", "--env", env, *offline, "--expert", expert, "--out", out)
    found = correction.find(Dataset.of(artifacts.load(out, "dataset")))
    assert found is not None
    assert found.trusted == trusted


def test_inspect_says_that_a_policy_learned_to_come_back(run: Path) -> None:
    assert "learned to come back" in succeed("inspect", run / "policy.safetensors").stdout


@pytest.mark.skipif(not (SHARED_DATA / "kitchen_mixed_replayed_d4rl_layout.hdf5").is_file(), reason="not at hand")
def test_peoples_demonstrations_in_the_kitchen_show_corrections(tmp_path: Path) -> None:
    recording = SHARED_DATA / "kitchen_mixed_replayed_d4rl_layout.hdf5"
    out = tmp_path / "dataset.h5"
    sources = ("--offline", f"file:{recording}", "--expert", f"file:{recording}#traj=246")
    succeed("build-dataset", "--env", "kitchen-mixed", *sources, "--out", out)
    found = correction.find(Dataset.of(artifacts.load(out, "dataset")))
    assert found is not None
    assert found.trusted
    resting = np.flatnonzero(~found.gain.any(axis=1))
    assert resting.tolist() == [9, 10, 13, 14, 20]  # two knobs and two burners that nobody uses, and the left hinge
