"""PointMass-4Direction: its physics against public data, its rules, its controller and its picture."""

from __future__ import annotations

import os
import subprocess
import sys

import gymnasium
import h5py
import numpy as np
import pytest
from conftest import SHARED_DATA, can_render
from gymnasium.utils.env_checker import check_env

from smodice_cli import envs
from smodice_cli.data import ROW_COLUMNS
from smodice_cli.envs import pointmass, pointmaze
from smodice_cli.envs.pointmass import GOALS, PointMass4Direction
from smodice_cli.envs.pointmaze import PointMaze, WaypointController
from smodice_cli.errors import ConfigError

U_MAZE_FILE = SHARED_DATA / "maze2d-umaze-v1-expert.hdf5"


@pytest.fixture(scope="module")
def u_maze_data() -> dict[str, np.ndarray]:
    """The public waypoint data of the U-maze, in float64."""
    if not U_MAZE_FILE.exists():
        pytest.skip(f"{U_MAZE_FILE} is absent; set SMODICE_SHARED_DATA to its folder")
    with h5py.File(U_MAZE_FILE) as file:
        keys = ("observations", "actions", "terminals", "infos/goal")
        data = {key: np.asarray(file[key], dtype=np.float64) for key in keys}
    data["terminals"] = data["terminals"].astype(bool)
    return data


def test_each_public_transition_replays(u_maze_data: dict[str, np.ndarray]) -> None:
    states, actions = u_maze_data["observations"], u_maze_data["actions"]
    maze = PointMaze(pointmaze.U_MAP)
    inside = np.flatnonzero(~u_maze_data["terminals"][:-1])  # the row after a terminal one starts anew
    replayed = np.empty((len(inside), 4))
    for row, i in enumerate(inside):
        maze.set_state(states[i, :2], states[i, 2:])
        replayed[row] = maze.step(actions[i])
    assert len(inside) > 49_000
    assert np.abs(replayed - states[inside + 1]).max() < 1e-5


def test_whole_public_episodes_replay(u_maze_data: dict[str, np.ndarray]) -> None:
    states, actions = u_maze_data["observations"], u_maze_data["actions"]
    maze = PointMaze(pointmaze.U_MAP)
    replayed = np.empty_like(states)
    fresh = True
    for i in range(len(states)):
        replayed[i] = maze.set_state(states[i, :2], states[i, 2:]) if fresh else maze.step(actions[i - 1])
        fresh = u_maze_data["terminals"][i]
    assert np.abs(replayed - states).max() < 1e-5


def test_controller_gives_the_public_final_actions(u_maze_data: dict[str, np.ndarray]) -> None:
    for i in np.flatnonzero(u_maze_data["terminals"]):
        controller = WaypointController(pointmaze.U_MAP, np.random.default_rng(0))
        action = controller.act(u_maze_data["observations"][i], u_maze_data["infos/goal"][i])
        assert controller.solved
        np.testing.assert_allclose(action, u_maze_data["actions"][i], atol=1e-5)


def test_gymnasium_accepts_the_environment() -> None:
    env = gymnasium.make("smodice/PointMass-4Direction-v0")
    check_env(env.unwrapped, skip_render_check=True)
    assert env.spec is not None
    assert env.spec.max_episode_steps == envs.find("pointmass-4direction").horizon


def test_registered_without_loading_mujoco() -> None:
    code = (
        "import sys, gymnasium, smodice_cli.envs.pointmass as p;"
        "gymnasium.spec('smodice/PointMass-4Direction-v0'); assert 'mujoco' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_starts_lie_within_the_stated_noise() -> None:
    env = PointMass4Direction()
    env.reset(seed=0)
    starts = np.array([env.reset()[0] for _ in range(1000)])
    offset = np.abs(starts[:, :2] - pointmass.START)
    assert offset.max() <= 0.1
    assert offset.max() > 0.095
    np.testing.assert_allclose(starts[:, 2:].std(0), 0.1, rtol=0.1)


def test_same_seed_same_trajectory() -> None:
    def rollout(seed: int) -> np.ndarray:
        env = PointMass4Direction()
        actions = np.random.default_rng(7).uniform(-1, 1, size=(50, 2))
        return np.array([env.reset(seed=seed)[0], *(env.step(action)[0] for action in actions)])

    assert rollout(3).tobytes() == rollout(3).tobytes()
    assert rollout(3).tobytes() != rollout(4).tobytes()


@pytest.mark.parametrize("goal", GOALS)
def test_controller_reaches_each_goal_and_only_the_task_pays(goal: str) -> None:
    env = envs.make("pointmass-4direction")
    controller = WaypointController(pointmaze.OPEN_MAP, np.random.default_rng(0))
    observation, _ = env.reset(seed=0)
    total, terminated, truncated = 0.0, False, False
    while not (terminated or truncated):
        observation, reward, terminated, truncated, info = env.step(controller.act(observation, GOALS[goal]))
        total += float(reward)
    assert terminated
    assert info == {"goal": goal, "success": goal == "left"}
    assert total == float(goal == "left")


def test_another_goal_can_be_the_task() -> None:
    env = PointMass4Direction(goal="up")
    env.reset(seed=0)
    env.maze.set_state((4.0, 6.82), (0.0, 5.0))
    _, reward, terminated, _, info = env.step(np.zeros(2, dtype=np.float32))
    assert (reward, terminated, info) == (1.0, True, {"goal": "up", "success": True})


def test_time_limit_truncates_an_idle_episode() -> None:
    env = envs.make("pointmass-4direction")
    env.reset(seed=0)
    idle = np.zeros(2, dtype=np.float32)
    ends = [env.step(idle)[2:4] for _ in range(200)]
    assert ends == [(False, False)] * 199 + [(False, True)]


def test_success_mask_agrees_with_the_environment() -> None:
    env = PointMass4Direction()
    env.reset(seed=0)
    rng = np.random.default_rng(0)
    observations, verdicts = [], []
    for position in rng.uniform((0.8, 3.8), (1.2, 4.2), size=(500, 2)):
        env.maze.set_state(position, rng.normal(size=2))
        observation, _, _, _, info = env.step(rng.uniform(-1, 1, size=2).astype(np.float32))
        observations.append(observation)
        verdicts.append(info["success"])
    mask = pointmass.success(np.array(observations))
    assert mask.dtype == bool
    assert 0 < mask.sum() < 500
    np.testing.assert_array_equal(mask, verdicts)
    assert envs.find("pointmass-4direction").success is pointmass.success


def test_walls_hold_the_point() -> None:
    maze = PointMaze(pointmaze.OPEN_MAP)
    for direction in ((-1, 0), (1, 0), (0, -1), (0, 1)):
        maze.set_state(pointmass.START, (0, 0))
        for _ in range(400):
            observation = maze.step(direction)
        # The inner faces are at world 1.5 and 8.5, so 0.3 and 7.3 in qpos, and the point's radius is 0.1.
        assert observation[:2].min() > 0.4 - 0.02
        assert observation[:2].max() < 7.2 + 0.02
        assert np.abs(observation[2:]).max() < 0.1


def test_forces_and_speeds_are_clipped() -> None:
    maze = PointMaze(pointmaze.OPEN_MAP)
    maze.set_state(pointmass.START, (9.0, -9.0))
    clipped = maze.step((7.0, -7.0))
    maze.set_state(pointmass.START, (5.0, -5.0))
    np.testing.assert_array_equal(clipped, maze.step((1.0, -1.0)))


def test_shortest_path_goes_round_the_wall() -> None:
    path = pointmaze.shortest_path(pointmaze.U_MAP, (3, 1), (1, 1))
    assert path == [(3, 2), (3, 3), (2, 3), (1, 3), (1, 2), (1, 1)]
    with pytest.raises(ValueError, match="no way"):
        pointmaze.shortest_path(("###", "#O#", "###"), (1, 1), (2, 2))


def test_demonstrations_are_of_the_published_size() -> None:
    episodes = [pointmass.demonstrate(0, index) for index in range(60)]
    lengths = [len(episode.actions) for episode in episodes]
    assert 79 <= min(lengths) <= max(lengths) <= 87
    assert np.mean(lengths) == pytest.approx(50_000 / 602, abs=1.0)
    for index, episode in enumerate(episodes):
        goal = list(GOALS.values())[index % 4]
        assert np.linalg.norm(episode.observations[-1, :2] - goal) < 0.1
        assert np.flatnonzero(episode.terminals).tolist() == [lengths[index] - 1]
        assert not episode.timeouts.any()
        assert episode.rewards.sum() == float(index % 4 == 0)
        assert pointmass.success(episode.observations).any() == (index % 4 == 0)
        np.testing.assert_array_equal(episode.next_observations[:-1], episode.observations[1:])


def test_a_demonstration_depends_on_nothing_but_its_seed_and_number() -> None:
    alone = pointmass.demonstrate(5, 2)
    pointmass.demonstrate(5, 0)
    again, other = pointmass.demonstrate(5, 2), pointmass.demonstrate(6, 2)
    assert all(vars(alone)[key].tobytes() == vars(again)[key].tobytes() for key in (*ROW_COLUMNS, "offsets"))
    assert alone.observations[0].tobytes() != other.observations[0].tobytes()


def test_stored_actions_replay_a_demonstration() -> None:
    episode = pointmass.demonstrate(0, 1)
    maze = PointMaze(pointmaze.OPEN_MAP)
    state = maze.set_state(episode.observations[0, :2], episode.observations[0, 2:])
    for action, expected in zip(episode.actions, episode.next_observations, strict=True):
        state = maze.step(action)
        np.testing.assert_allclose(state, expected, atol=1e-5)


def test_wrong_arguments_are_explained() -> None:
    with pytest.raises(ConfigError, match="goal 'north'"):
        PointMass4Direction(goal="north")
    with pytest.raises(ConfigError, match="render mode 'human'"):
        PointMass4Direction(render_mode="human")


needs_opengl = pytest.mark.skipif(not can_render(), reason="MuJoCo itself cannot render on this machine")


@needs_opengl
def test_renders_the_maze_from_above() -> None:
    env = PointMass4Direction(render_mode="rgb_array")
    env.reset(seed=0)
    before = env.render()
    env.maze.set_state((6.0, 2.0), (0.0, 0.0))
    after = env.render()
    env.close()
    assert before is not None
    assert after is not None
    assert (before.shape, before.dtype) == ((480, 480, 3), np.uint8)
    assert before.std() > 10
    # x to the right, y up: what changed is the middle and the place of (6, 2), which is world (7.2, 3.2).
    rows, columns = np.nonzero((before != after).any(-1))
    assert columns.max() == pytest.approx((7.2 - 0.5) * 480 / 9, abs=12)
    assert rows.max() == pytest.approx(480 - (3.2 - 0.5) * 480 / 9, abs=12)


@needs_opengl
def test_renders_after_the_first_use_without_a_screen() -> None:
    code = (
        "from smodice_cli.envs.pointmass import PointMass4Direction as E\n"
        "E().reset(seed=0)\n"  # mujoco is loaded before anybody thinks of rendering
        "env = E(render_mode='rgb_array'); env.reset(seed=0)\n"
        "picture = env.render(); print(picture.shape, picture.std() > 10)\n"
    )
    environment = {k: v for k, v in os.environ.items() if k not in ("DISPLAY", "MUJOCO_GL")}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "(480, 480, 3) True"
    assert "Exception ignored" not in done.stderr
