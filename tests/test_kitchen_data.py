"""Recordings of the kitchen: three layouts of one state, rewards made anew, what is refused, and scores by task."""

from __future__ import annotations

import importlib.util
from collections import Counter
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
from conftest import SHARED_DATA, SMALL, refuse, smodice, succeed, write_recipe
from recordings import rows_of

from smodice_cli import artifacts, envs
from smodice_cli.data import Dataset
from smodice_cli.envs import kitchen
from smodice_cli.envs.kitchen import COMPLETE_TASKS, MIXED_TASKS, START, TASKS, goal_of
from smodice_cli.views import choice

MIXED = "kitchen-mixed"
HUMAN = SHARED_DATA / "kitchen_mixed_replayed_d4rl_layout.hdf5"
LENGTH = 12  # rows of an episode


def states_of(*orders: tuple[str, ...]) -> np.ndarray:
    """Episodes in which these tasks are completed one after the other, every third step."""
    rng, found = np.random.default_rng(0), []
    for order in orders:
        states = START + rng.uniform(-1e-3, 1e-3, (LENGTH, 30))
        for number, task in enumerate(order, 1):
            where, goal = TASKS[task]
            states[3 * number :, where] = goal
        found.append(states)
    return np.concatenate(found)


ORDERS = (("microwave", "kettle", "light switch"), ("slide cabinet", "kettle"), ())


def write(
    path: Path, width: int = 60, orders: tuple[tuple[str, ...], ...] = ORDERS, goal: np.ndarray | None = None
) -> Path:
    """A recording as D4RL's are (60), as Minari's (59), or with our own states (30)."""
    states = states_of(*orders)
    rows = len(states)
    if width == 60:
        columns = np.concatenate(
            [states, np.broadcast_to(goal_of(MIXED_TASKS) if goal is None else goal, (rows, 30))], 1
        )
    else:
        columns = np.full((rows, width), 7.0)
        columns[:, kitchen.LAYOUTS.get(width, [*range(30)])] = states
    ends = np.arange(rows) % LENGTH == LENGTH - 1
    with h5py.File(path, "w") as file:
        file["observations"], file["terminals"] = columns.astype(np.float32), ends.astype(np.float32)
        file["actions"] = np.random.default_rng(1).uniform(-1, 1, (rows, 9)).astype(np.float32)
        file["rewards"] = np.full(rows, 4.0, np.float32)  # counts of tasks that are done, a step
    return path


def built(tmp_path: Path, offline: str | Path, expert: str | Path, *more: str) -> tuple[int, str]:
    """The exit code of build-dataset and what it said."""
    sources = ("--offline", f"{offline}", "--expert", f"{expert}")
    done = smodice("build-dataset", "--env", MIXED, *sources, "--out", tmp_path / "run/d.h5", *more)
    return done.code, done.stderr


# --- layouts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [60, 59, 30])
def test_every_layout_gives_the_same_rows(tmp_path: Path, width: int) -> None:
    block = rows_of(f"file:{write(tmp_path / 'k.hdf5', width)}", MIXED)
    states = states_of(*ORDERS).astype(np.float32).reshape(3, LENGTH, 30)
    np.testing.assert_array_equal(block.observations.reshape(3, LENGTH - 1, 30), states[:, :-1])
    np.testing.assert_array_equal(block.next_observations.reshape(3, LENGTH - 1, 30), states[:, 1:])


def test_rewards_are_first_completions_and_every_end_is_a_cut(tmp_path: Path) -> None:
    block = rows_of(f"file:{write(tmp_path / 'k.hdf5')}", MIXED)
    rewards = block.rewards.reshape(3, LENGTH - 1)
    assert [np.flatnonzero(row).tolist() for row in rewards] == [[2, 5, 8], [5], []]
    assert block.returns() == [3.0, 1.0, 0.0]
    assert not block.terminals.any()
    assert np.flatnonzero(block.timeouts).tolist() == [10, 21, 32]


def test_a_final_state_that_the_file_holds_keeps_its_row(tmp_path: Path) -> None:
    path = write(tmp_path / "k.hdf5", 30)
    with h5py.File(path, "a") as file:
        file["next_observations"] = file["observations"][:] + np.float32(1e-4)
    block = rows_of(f"file:{path}", MIXED)
    assert block.rows == 3 * LENGTH
    assert np.flatnonzero(block.timeouts).tolist() == [11, 23, 35]


def test_minaris_episodes_are_read_by_their_observation(tmp_path: Path) -> None:
    columns = np.full((LENGTH, 59), 7.0)
    columns[:, kitchen.LAYOUTS[59]] = states_of(ORDERS[0])
    with h5py.File(tmp_path / "m.hdf5", "w") as file:
        file["episode_0/observations/observation"] = columns
        file["episode_0/observations/desired_goal/kettle"] = np.zeros((LENGTH, 7))
        file["episode_0/actions"] = np.zeros((LENGTH - 1, 9))
        file["episode_0/rewards"] = np.ones(LENGTH - 1)
        file["episode_0/terminations"] = np.arange(LENGTH - 1) == LENGTH - 2
    block = rows_of(f"file:{tmp_path / 'm.hdf5'}", MIXED)
    assert (block.returns(), block.terminals.any()) == ([3.0], False)


def test_a_demonstration_longer_than_the_time_limit_stays_whole(tmp_path: Path) -> None:
    path = tmp_path / "long.hdf5"
    with h5py.File(path, "w") as file:
        file["observations"] = np.tile(states_of(ORDERS[0]), (30, 1)).astype(np.float32)
        file["actions"], file["terminals"] = np.zeros((360, 9), np.float32), np.arange(360) == 359
    assert rows_of(f"file:{path}", MIXED).episodes == 1


# --- d4rl's files, end to end -----------------------------------------------------------------------------------------


def test_d4rls_files_become_scores_with_the_tasks_of_every_episode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("gymnasium_robotics", reason="the extra [kitchen] is not installed")
    monkeypatch.setenv("D4RL_DATASET_DIR", str(tmp_path))
    write(tmp_path / "kitchen_microwave_kettle_bottomburner_light-v0.hdf5", orders=ORDERS * 4)
    complete = "mini_kitchen_microwave_kettle_light_slider-v0.hdf5"
    write(tmp_path / complete, orders=(COMPLETE_TASKS[:3],), goal=goal_of(COMPLETE_TASKS))
    run = tmp_path / "run"
    code, said = built(tmp_path, "d4rl:kitchen-mixed-v0", "d4rl:kitchen-complete-v0#traj=0")
    assert code == 0, said
    assert "kitchen-complete-v0#traj=0: its goal is another (microwave, kettle, light switch, slide cabinet)" in said
    dataset = artifacts.read_any(run / "d.h5")
    assert dataset.arrays["observations"].shape == (12 * (LENGTH - 1), 30)
    assert dataset.arrays["expert/observations"].shape == (LENGTH, 30)
    assert dataset.header.metrics["expert_return"] == 3.0
    assert dataset.header.metrics["state_names"][22] == "microwave"
    succeed(
        "train-policy", "--algo", "bc", "--data", run / "d.h5", "--steps", "5", *SMALL, "--out", run / "p.safetensors"
    )
    scores = ("--episodes", "2", "--threads", "1", "--set", "curve_episodes=0", "--out", run / "eval.json")
    succeed("eval", "--policy", run / "p.safetensors", *scores)
    payload = artifacts.read_payload(run / "eval.json")
    assert payload["score"]["completed"] == dict.fromkeys(MIXED_TASKS, 0.0)
    assert [episode["completed"] for episode in payload["per_episode"]] == [dict.fromkeys(MIXED_TASKS)] * 2
    assert "completed: bottom burner" in succeed("inspect", run / "eval.json").stdout


def test_orders_of_completion_are_shown_with_their_episodes() -> None:
    from smodice_cli.views.scores import orders_of

    both, one = {"completed": {"kettle": 90, "microwave": 40}}, {"completed": {"kettle": None, "microwave": 40}}
    found = [(entry["order"], entry["numbers"]) for entry in orders_of([one, both, both])]
    assert found == [("microwave > kettle", [1, 2]), ("microwave", [0])]
    assert orders_of([{"return": 1.0}]) == []


def test_weights_are_shown_by_the_tasks_that_the_rows_lead_to(tmp_path: Path) -> None:
    path = write(tmp_path / "k.hdf5")
    assert built(tmp_path, path, f"{path}#traj=0")[0] == 0
    dataset = Dataset.of(artifacts.load(tmp_path / "run/d.h5", "dataset"))
    w = np.random.default_rng(3).random(dataset.rows)
    rows: dict[tuple[str, str], list[float]] = {}
    for row, weight in enumerate(w):
        episode, step = divmod(row, LENGTH - 1)
        order, done = ORDERS[episode], min(step // 3, len(ORDERS[episode]))
        key = " > ".join(order[:done]) or "nothing", (*order, "nothing")[done]
        rows.setdefault(key, []).append(weight)
    found = choice.branches(w, dataset)
    assert {(one["done"], one["next"]) for one in found} == set(rows)
    for one in found:
        mine = rows[one["done"], one["next"]]
        here = [weight for key, weights in rows.items() if key[0] == one["done"] for weight in weights]
        assert one["share"] == pytest.approx(sum(mine) / w.sum())
        assert one["weight_here"] == pytest.approx(sum(mine) / sum(here))
        assert one["rows_here"] == pytest.approx(len(mine) / len(here))
    assert choice.branches(w, replace(dataset, env="hopper")) == []


def test_dimensions_with_nothing_but_noise_count_as_constant(tmp_path: Path) -> None:
    noise = np.random.default_rng(2).uniform(-1, 1, (1000, 30)) * kitchen.NOISE
    noise[:, 22] += np.linspace(0, 0.02, 1000)  # the microwave is opened a little
    std = envs.find(MIXED).deviations(noise.std(axis=0))
    assert np.flatnonzero(std != 1).tolist() == [22]
    assert envs.find("hopper").deviations(np.full(11, 1e-5)).tolist() == [1e-5] * 11
    assert built(tmp_path, write(tmp_path / "k.hdf5"), f"{tmp_path / 'k.hdf5'}#traj=0")[0] == 0
    stored = artifacts.read_any(tmp_path / "run/d.h5").arrays["std"]
    assert stored[0] == 1
    assert 0.3 < stored[22] < 0.4


# --- people's data ----------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not HUMAN.exists(), reason=f"{HUMAN} is absent; set SMODICE_SHARED_DATA to its folder")
def test_peoples_demonstrations_solve_what_is_known_of_them() -> None:
    block = rows_of(f"file:{HUMAN}", MIXED)
    assert (block.rows, block.episodes) == (132_115 - 584, 584)
    assert Counter(block.returns()) == {1.0: 30, 2.0: 306, 3.0: 248}
    std = envs.find(MIXED).deviations(block.observations.std(axis=0))
    assert np.flatnonzero(std == 1).tolist() == [9, 10, 13, 14, 20], "what nobody moves"
    complete = rows_of(f"file:{HUMAN}#traj=246", "kitchen-complete")
    assert complete.returns() == [4.0], "the recipes' expert"


# --- bad input --------------------------------------------------------------------------------------------------------


def test_another_tasks_goal_is_told_and_no_goal_is_refused(tmp_path: Path) -> None:
    other = write(tmp_path / "other.hdf5", goal=goal_of(COMPLETE_TASKS))
    code, said = built(tmp_path, other, f"{other}#traj=0")
    assert code == 0
    assert "its goal is another (microwave, kettle, light switch, slide cabinet); the rewards are for microwave" in said
    assert said.count("its goal is another") == 2, "once for each source"
    wrong = write(tmp_path / "wrong.hdf5", goal=np.linspace(0, 1, 30))
    code, said = built(tmp_path, wrong, f"{wrong}#traj=0", "--force")
    assert code == 3
    assert "columns 30 to 59 of its states are not a goal of the kitchen's tasks" in said


def test_layouts_mixed_in_one_folder_are_refused_and_in_two_sources_are_one(tmp_path: Path) -> None:
    folder = tmp_path / "both"
    folder.mkdir()
    four, three = write(folder / "a.hdf5", 60), write(folder / "b.hdf5", 59)
    code, said = built(tmp_path, folder, f"{four}#traj=0")
    assert code == 3
    assert "b.hdf5 has 59 dimensions of state" in said
    code, said = built(tmp_path, four, f"{three}#traj=0")
    assert code == 0, said
    stored = artifacts.read_any(tmp_path / "run/d.h5").arrays
    np.testing.assert_array_equal(stored["expert/observations"][:-1], stored["observations"][: LENGTH - 1])


@pytest.mark.parametrize(
    ("column", "shape", "message"),
    [
        ("next_observations", (36, 59), "'next_observations' and 'observations' differ in their dimensions"),
        ("observations", (36, 45), "observations have 45 dimensions, but kitchen-mixed has 30"),
        ("actions", (36, 7), "actions have 7 dimensions, but kitchen-mixed has 9"),
    ],
)
def test_columns_of_another_width_are_refused(
    tmp_path: Path, column: str, shape: tuple[int, int], message: str
) -> None:
    path = write(tmp_path / "k.hdf5")
    with h5py.File(path, "a") as file:
        if column in file:
            del file[column]
        file[column] = np.random.default_rng(0).uniform(-1, 1, shape).astype(np.float32)
    out = ("--out", tmp_path / "run/d.h5")
    assert message in refuse(3, "build-dataset", "--env", MIXED, "--offline", path, "--expert", f"{path}#traj=0", *out)


def test_without_its_package_the_kitchen_is_refused_in_one_sentence_before_it_is_simulated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if "robotics" in name else find_spec(name))
    path = write(tmp_path / "k.hdf5")
    sources = ("--offline", f"sim:{MIXED}#500", "--expert", f"{path}#traj=0")
    needed = f"error: simulating {MIXED} needs the gymnasium_robotics package"
    assert refuse(4, "build-dataset", "--env", MIXED, *sources, "--out", tmp_path / "run/d.h5") == needed
    recipe = {"dataset": {"env": MIXED, "offline": [str(path)], "expert": [f"{path}#traj=0"]}}
    assert refuse(4, "run", write_recipe(tmp_path / "r.toml", recipe), "--out", tmp_path / "run") == needed
    assert not (tmp_path / "run").exists(), "it is said before the training, not after"
    assert built(tmp_path, path, f"{path}#traj=0")[0] == 0, "recordings need no simulator"
