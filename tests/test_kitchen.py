"""Franka Kitchen: its physics against gymnasium-robotics' own, its rules, its picture and the scripted arm."""

from __future__ import annotations

import subprocess
import sys

import gymnasium
import numpy as np
import pytest
from conftest import can_render
from gymnasium.utils.env_checker import check_env
from recordings import rows_of

from smodice_cli import envs
from smodice_cli.data import ROW_COLUMNS
from smodice_cli.envs import kitchen, kitchen_script, rendering
from smodice_cli.envs.kitchen import NOISE, START, TASKS, Kitchen, done
from smodice_cli.envs.kitchen_script import CAREFUL, OTHERS, POOR, SCRIPTS, play
from smodice_cli.errors import ConfigError
from smodice_cli.sources import sim

pytest.importorskip("gymnasium_robotics", reason="the extra [kitchen] is not installed")
MIXED = "kitchen-mixed"


@pytest.fixture(scope="module")
def env() -> Kitchen:
    """One kitchen without noise; loading the model takes most of a second."""
    return Kitchen(noise=0.0)


def solved(*tasks: str) -> np.ndarray:
    """The start, with these tasks' objects where they should be."""
    state = START.copy()
    for task in tasks:
        where, goal = TASKS[task]
        state[where] = goal
    return state


IDLE = np.zeros(9, np.float32)


# --- environment ------------------------------------------------------------------------------------------------------


def test_steps_are_those_of_franka_kitchen_to_the_bit_without_noise(env: Kitchen) -> None:
    gymnasium.register_envs(__import__("gymnasium_robotics"))
    noiseless = {"robot_noise_ratio": 0.0, "object_noise_ratio": 0.0}
    theirs = gymnasium.make("FrankaKitchen-v1", tasks_to_complete=list(kitchen.MIXED_TASKS), **noiseless)
    demonstrated = play(kitchen_script._kitchen(), ("microwave", "kettle"), CAREFUL, np.random.default_rng(0)).actions
    actions = [*demonstrated.astype(np.float64), *np.random.default_rng(1).uniform(-1.5, 1.5, (30, 9))]
    observed, _ = theirs.reset(seed=0)
    ours, _ = env.reset(seed=0)
    columns, paid = kitchen.LAYOUTS[59], [0.0, 0.0]
    for action in actions:
        np.testing.assert_array_equal(ours, observed["observation"][columns])
        observed, their_reward, *_ = theirs.step(action)
        ours, reward, *_ = env.step(action)
        assert reward == their_reward
        paid = [paid[0] + reward, paid[1] + their_reward]
    assert paid == [2.0, 2.0], "the objects were moved"


def test_noise_stays_within_its_bounds_and_fills_them() -> None:
    noisy = Kitchen()
    noisy.reset(seed=0)
    seen = np.array([noisy.reset()[0] for _ in range(1000)]) - START
    assert (np.abs(seen) <= NOISE + 1e-15).all()
    assert (np.abs(seen).max(axis=0) > 0.98 * NOISE).all()
    expected = {0: 0.01, 8: 0.01, 9: 5e-4, 12: 5e-5, 18: 5e-4, 20: 0.01, 22: 0.01, 23: 5e-4, 27: 0.01, 29: 5e-4}
    for dimension, amplitude in expected.items():
        assert NOISE[dimension] == pytest.approx(amplitude)


def test_every_task_pays_once_and_all_of_them_end_the_episode(env: Kitchen) -> None:
    env.reset(seed=0)
    env.put(solved("microwave"))
    _, reward, terminated, _, info = env.step(IDLE)
    assert (reward, terminated, info["success"]) == (1.0, False, False)
    assert [task for task, is_done in info["completed"].items() if is_done] == ["microwave"]
    assert env.step(IDLE)[1] == 0.0
    env.put(START)  # undone again, and nothing is taken back
    assert env.step(IDLE)[4]["completed"]["microwave"]
    env.put(solved("kettle", "bottom burner", "light switch"))
    _, reward, terminated, _, info = env.step(IDLE)
    assert (reward, terminated, info["success"]) == (3.0, True, True)


@pytest.mark.parametrize("name", ["kitchen-mixed", "kitchen-complete", "kitchen-kettle", "kitchen-microwave"])
def test_declared_tasks_are_the_environments_own(name: str) -> None:
    found = envs.find(name)
    tasks = found.kwargs["tasks"]
    assert found.expert_score == len(tasks)
    assert found.success is not None
    states = np.array([solved(*tasks), solved(*tasks[1:]), solved(*TASKS)])
    assert found.success(states).tolist() == [True, False, True]
    assert envs.make(name).unwrapped.tasks == tasks


def test_gymnasium_accepts_the_environment_and_time_ends_it() -> None:
    made = envs.make(MIXED)
    check_env(made.unwrapped, skip_render_check=True)
    made.reset(seed=0)
    ends = [made.step(IDLE)[2:4] for _ in range(280)]
    assert ends == [(False, False)] * 279 + [(False, True)]


def test_wrong_arguments_are_explained() -> None:
    with pytest.raises(ConfigError, match="kitchen task 'dishes'"):
        Kitchen(tasks=("kettle", "dishes"))
    with pytest.raises(ConfigError, match="render mode 'human'"):
        Kitchen(render_mode="human")


def test_the_model_is_found_without_importing_its_package() -> None:
    code = (
        "import sys; from smodice_cli import envs\n"
        "envs.find('kitchen-mixed'); assert 'mujoco' not in sys.modules\n"
        "envs.make('kitchen-mixed').reset(seed=0); assert 'gymnasium_robotics' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.skipif(not can_render(), reason="MuJoCo itself cannot render on this machine")
def test_the_picture_shows_the_objects_of_all_tasks() -> None:
    pictures = rendering.pictures_of(MIXED, np.array([START, *(solved(task) for task in TASKS)], np.float32))
    assert {picture.shape for picture in pictures} == {(480, 480, 3)}
    assert pictures[0].std() > 10
    for task, picture in zip(TASKS, pictures[1:], strict=True):
        assert (picture != pictures[0]).any(axis=-1).sum() > 30, f"{task} is out of sight"


# --- demonstrations ---------------------------------------------------------------------------------------------------


def test_plans_are_four_of_seven_tasks_and_never_the_four_that_are_scored() -> None:
    assert len(set(OTHERS)) == 34
    assert set(kitchen.MIXED_TASKS) not in map(set, OTHERS)
    assert {task for plan in OTHERS for task in plan} == set(TASKS)
    assert [SCRIPTS["mixed"].plan(number) for number in range(68)] == OTHERS * 2


@pytest.mark.slow
@pytest.mark.parametrize("plan", OTHERS[::5], ids=" ".join)
def test_a_careful_arm_does_its_plan(plan: kitchen_script.Plan) -> None:
    episode = play(kitchen_script._kitchen(), plan, CAREFUL, np.random.default_rng(3))
    assert {task for task in TASKS if done(episode.next_observations, task).any()} == set(plan)
    assert episode.rows <= 280


def test_the_complete_demonstration_does_its_four_tasks_and_the_score_counts_three() -> None:
    found = envs.find("kitchen-complete").demonstrator
    assert found is not None
    episode = found(0, 0)
    assert episode.rewards.sum() == 4
    assert kitchen.first_completions(episode, kitchen.MIXED_TASKS).sum() == 3
    assert episode.timeouts.tolist() == [False] * (episode.rows - 1) + [True]


def test_less_care_fails_more_often() -> None:
    plan = ("kettle", "light switch", "hinge cabinet")
    episodes = [play(kitchen_script._kitchen(), plan, POOR, np.random.default_rng(number)) for number in range(3)]
    assert sum(done(episode.next_observations, task).any() for episode in episodes for task in plan) < 9


def test_any_number_of_workers_gives_the_same_demonstrations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sim, "BATCH", 1)
    one, three = rows_of(f"sim:{MIXED}#episodes=3", MIXED, 1), rows_of(f"sim:{MIXED}#episodes=3", MIXED, 3)
    for column in (*ROW_COLUMNS, "offsets"):
        assert getattr(one, column).tobytes() == getattr(three, column).tobytes()
    assert one.rewards.sum() > 3
    assert rows_of(f"sim:{MIXED}#traj=2", MIXED).actions.tobytes() == one.take(2, 3).actions.tobytes()
