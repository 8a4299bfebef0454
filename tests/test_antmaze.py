"""AntMaze: its physics against D4RL's transitions, its rules, its controllers, its data and D4RL's files of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import h5py
import numpy as np
import pytest
from conftest import SHARED_DATA, can_render, refuse, succeed
from gymnasium.utils.env_checker import check_env
from recordings import policy_file, rows_of, write_file

from smodice_cli import envs
from smodice_cli.data import ROW_COLUMNS, Transitions
from smodice_cli.envs import antmaze, pointumaze, rendering
from smodice_cli.envs.antmaze import GOAL, HORIZON, RADIUS, STAY
from smodice_cli.envs.heading import canonical, original
from smodice_cli.sources import sim

ENV, RANDOM_GOAL, POINT = "antmaze-umaze", "antmaze-umaze-random-goal", "pointmass-umaze"
GENUINE = SHARED_DATA / "antmaze-umaze-transitions.npz"
WALKS = 24  # few of them fall


def ant(**kwargs: Any) -> Any:
    return envs.make(ENV, **kwargs).unwrapped


@pytest.fixture(scope="module")
def walks() -> list[Transitions]:
    return [sim._episode(ENV, 0, number) for number in range(WALKS)]


def uprightness(states: np.ndarray) -> np.ndarray:
    """1 on its feet, -1 on its back."""
    return 1 - 2 * (states[:, 4:6] ** 2).sum(axis=1)


# --- the environment ---


def test_it_replays_d4rls_own_transitions() -> None:
    if not GENUINE.exists():
        pytest.skip(f"{GENUINE} is absent; set SMODICE_SHARED_DATA to its folder")
    data, env = np.load(GENUINE), ant()
    states, following = data["state"].astype(np.float64), data["next_state"]
    replayed = []
    for state, action in zip(states, data["action"], strict=True):
        env.set_state(state[:15], state[15:])
        replayed.append(env.advance(action))
    error = np.abs(np.array(replayed) - following)[:, :2]
    assert len(states) == 285
    assert error.max() <= 1e-3
    assert np.median(error) < 1e-4
    assert antmaze.possible(states).all()


@pytest.mark.filterwarnings("ignore:.*different from the unwrapped version.*")
def test_gymnasium_accepts_the_environments() -> None:
    for name in (ENV, RANDOM_GOAL, POINT, "ant-heading"):
        check_env(envs.make(name).unwrapped, skip_render_check=True)


def test_it_starts_in_the_first_cell_with_a_normalised_quaternion() -> None:
    env = ant()
    env.reset(seed=0)
    starts = np.array([env.reset()[0] for _ in range(200)])
    assert starts.shape == (200, 29)
    assert np.abs(starts[:, :2]).max() <= 0.1
    assert np.abs(starts[:, :2]).max() > 0.09
    np.testing.assert_allclose(np.linalg.norm(starts[:, 3:7], axis=1), 1.0)
    np.testing.assert_allclose(starts[:, 15:].std(), 0.1, rtol=0.05)


def test_reaching_the_goal_pays_and_ends_the_episode() -> None:
    env = ant()
    start, _ = env.reset(seed=0)
    for distance, solved in ((RADIUS - 0.1, True), (RADIUS + 0.1, False)):
        env.set_state(np.concatenate([GOAL - (0, distance), start[2:15]]), np.zeros(14))
        observation, reward, terminated, truncated, info = env.step(np.zeros(8, np.float32))
        assert (reward, terminated, truncated, info) == (float(solved), solved, False, {"success": solved})
        assert antmaze.success(observation[None]).tolist() == [solved]


def test_an_ant_on_its_back_goes_on_until_the_time_limit() -> None:
    env = envs.make(ENV)
    start, _ = env.reset(seed=0)
    qpos = start[:15].copy()
    qpos[2:7] = 0.4, 0, 1, 0, 0
    env.unwrapped.set_state(qpos, np.zeros(14))
    ends = [env.step(np.zeros(8, np.float32))[2:4] for _ in range(HORIZON)]
    assert ends == [(False, False)] * (HORIZON - 1) + [(False, True)]


def test_the_random_goal_is_drawn_as_d4rl_does_around_the_fixed_one() -> None:
    env = envs.make(RANDOM_GOAL).unwrapped
    env.reset(seed=0)
    goals = []
    for _ in range(300):
        env.reset()
        goals.append(env.goal)
    low, high = np.min(goals, axis=0), np.max(goals, axis=0)
    assert (low >= (0, 8)).all()
    assert (high <= (1.5, 9.5)).all()
    assert (high - low > 1.2).all()
    np.testing.assert_allclose(np.mean(goals, axis=0), GOAL, atol=0.06)
    assert ant().goal is GOAL


def test_walls_hold_the_ant_and_places_beyond_them_are_impossible() -> None:
    free = np.array([(0, 0), (9.9, 9.9), (8, 4), (-1.9, 9.9)])
    walls = np.array([(0, 4), (3, 4), (-3, 0), (0, 11), (12, 8), (20, 20)])
    assert antmaze.possible(free).all()
    assert not antmaze.possible(walls).any()
    env = ant()
    start, _ = env.reset(seed=0)
    env.set_state(start[:15], np.array([0, 8.0, *np.zeros(12)]))  # thrown at the wall
    path = np.array([env.advance(np.zeros(8)) for _ in range(40)])
    assert 0.5 < path[:, 1].max() < 2.0


@pytest.mark.skipif(not can_render(), reason="MuJoCo itself cannot render on this machine")
def test_it_is_drawn_from_above_with_the_maze_and_the_goal() -> None:
    env = ant()
    states = np.repeat(env.reset(seed=0)[0][None], 2, axis=0)
    states[1, :2] = 8, 8
    before, after = (picture.astype(int) for picture in rendering.pictures_of(ENV, states))
    rows, columns = np.nonzero(np.abs(before - after).sum(-1) > 100)
    metre = 480 / 14  # the picture shows 14 metres around (4, 4), x to the right and y up
    assert columns.min() == pytest.approx(240 - 4 * metre, abs=1.5 * metre)
    assert columns.max() == pytest.approx(240 + 4 * metre, abs=1.5 * metre)
    assert rows.min() == pytest.approx(240 - 4 * metre, abs=1.5 * metre)
    x, y = (round(240 + (GOAL[0] - 4) * metre), round(240 - (GOAL[1] - 4) * metre))
    red, green, blue = before[y, x]
    assert green > 1.3 * max(red, blue), "the goal is green"
    assert before[240, 100].std() < 25, "the wall between the corridors is grey"


# --- steering ---


def turned(state: np.ndarray, angle: float) -> np.ndarray:
    """The same ant, turned about the vertical through its place."""
    out, (c, s) = state.copy(), (np.cos(angle / 2), np.sin(angle / 2))
    w, x, y, z = state[3:7]
    out[3:7] = c * w - s * z, c * x - s * y, c * y + s * x, c * z + s * w
    c, s = np.cos(angle), np.sin(angle)
    out[15:17] = c * state[15] - s * state[16], s * state[15] + c * state[16]
    return out


@pytest.mark.parametrize("quarters", range(4))
def test_an_ant_with_renamed_legs_moves_as_before(quarters: int) -> None:
    """To rounding: the body, its joints and its motors are symmetric under quarter turns."""
    env, rng = envs.make("ant-heading").unwrapped, np.random.default_rng(quarters)
    env.reset(seed=quarters)

    def step(state: np.ndarray, action: np.ndarray) -> np.ndarray:
        env.set_state(state[:15], state[15:])
        env.do_simulation(action, env.frame_skip)
        return np.concatenate([env.data.qpos, env.data.qvel])

    for _ in range(5):
        seen = np.concatenate([[0, 0, 0.6, 1, 0, 0, 0], np.tile([0.0, 1.0], 4) * (1, 1, 1, -1, 1, -1, 1, 1)])
        state = np.concatenate([seen + rng.uniform(-0.1, 0.1, 15), rng.normal(size=14)])
        state[3:7] /= np.linalg.norm(state[3:7])
        state = turned(state, quarters * np.pi / 2)
        view, shift = canonical(state, 0.0)
        assert shift == quarters
        same = np.concatenate([state[:2], view[:13], view[13:]])  # the ant under the other names
        action = rng.uniform(-1, 1, 8)
        moved, expected = step(same, action), step(state, original(action, shift))
        np.testing.assert_allclose(moved[:3], expected[:3], atol=1e-12)
        np.testing.assert_allclose(canonical(expected, 0.0)[0], canonical(moved, 0.0)[0], atol=1e-9)


def test_turning_the_ant_and_its_direction_together_changes_nothing_that_the_policy_sees() -> None:
    rng = np.random.default_rng(0)
    for angle in rng.uniform(-np.pi, np.pi, 20):
        state = rng.normal(size=29)
        state[3:7] /= np.linalg.norm(state[3:7])
        heading = float(rng.uniform(-np.pi, np.pi))
        view, shift = canonical(state, heading)
        again, same = canonical(turned(state, angle), heading + angle)
        assert shift == same
        np.testing.assert_allclose(again, view, atol=1e-12)


# --- demonstrations ---


def test_most_walks_reach_the_goal_and_some_fall_over_as_in_d4rls_data(walks: list[Transitions]) -> None:
    solved = [bool(walk.rewards.any()) for walk in walks]
    first = [int(walk.rewards.argmax()) for walk in walks if walk.rewards.any()]
    assert 0.5 <= np.mean(solved) < 1
    assert 120 < np.mean(first) < 350
    fallen = [bool((uprightness(walk.observations) < 0).any()) for walk in walks]
    assert 0 < np.mean(fallen) < 0.5


def test_walks_are_made_by_a_half_trained_and_a_trained_policy_in_turn(walks: list[Transitions]) -> None:
    for number, name in enumerate(("ant-heading-medium", "ant-heading")):
        act = sim._policy(envs.POLICIES / f"{name}.safetensors")[0].act
        alone = antmaze.demonstrate(0, number, act)
        np.testing.assert_array_equal(alone.actions, walks[number].actions)


def test_a_walk_goes_on_for_a_while_at_its_goal_and_pays_once(walks: list[Transitions]) -> None:
    for number, walk in enumerate(walks):
        assert walk.rows <= HORIZON
        assert np.flatnonzero(walk.timeouts).tolist() == [walk.rows - 1]
        assert not walk.terminals.any()
        own = antmaze.reached(walk.next_observations, antmaze.draw_goal(np.random.default_rng([0, number])))
        arrived = own.argmax() + 1 if own.any() else HORIZON
        assert walk.rows == min(arrived + STAY, HORIZON)
        inside = antmaze.success(walk.next_observations)
        assert walk.rewards.sum() == float(inside.any())
        if inside.any():
            assert walk.rewards.argmax() == inside.argmax()
        np.testing.assert_array_equal(walk.next_observations[:-1], walk.observations[1:])
        assert antmaze.possible(walk.observations).all()


def test_the_walk_that_the_recipes_imitate_reaches_the_goal_on_its_feet() -> None:
    """Source number 0 of the expert's, seeded as build-dataset seeds it."""
    expert = sim._episode(ENV, 500_000, 1)
    assert expert.rewards.sum() == 1
    assert uprightness(expert.observations).min() > 0


def test_stored_actions_replay_a_walk(walks: list[Transitions]) -> None:
    env, walk = ant(), walks[0]
    for row in range(0, walk.rows, 25):
        env.set_state(*np.split(walk.observations[row].astype(np.float64), [15]))
        np.testing.assert_allclose(env.advance(walk.actions[row])[:15], walk.next_observations[row, :15], atol=1e-3)


def test_reversed_walks_lead_from_the_end_to_the_beginning() -> None:
    walk = sim._episode(f"{ENV}-reversed", 0, 3)
    assert np.abs(walk.observations[0, :2] - (0, 8)).max() <= 0.1
    assert walk.observations[:, 1].min() < 1.5
    assert not walk.rewards.any()
    assert sim.behaviour(f"{ENV}-reversed").env == ENV


def test_a_walk_of_the_random_goal_pays_at_its_own_goal(walks: list[Transitions]) -> None:
    walk = sim._episode(RANDOM_GOAL, 0, 0)
    np.testing.assert_array_equal(walk.observations, walks[0].observations)
    goal = antmaze.draw_goal(np.random.default_rng([0, 0]))
    assert walk.rewards.argmax() == antmaze.reached(walk.next_observations, goal).argmax()


@pytest.mark.parametrize("name", [ENV, f"{ENV}-random", POINT])
def test_any_number_of_workers_gives_the_same_bytes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sim, "BATCH", 1)
    env = POINT if name == POINT else ENV
    one, two = (rows_of(f"sim:{name}#episodes=2", env, workers) for workers in (1, 2))
    for column in (*ROW_COLUMNS, "offsets"):
        assert getattr(one, column).tobytes() == getattr(two, column).tobytes()


# --- the point ---


def test_the_point_goes_through_the_same_corridor_to_the_same_goal() -> None:
    episode = sim._episode(POINT, 0, 0)
    states = episode.states()
    assert antmaze.possible(states).all()
    assert np.abs(states[0, :2]).max() <= 0.4
    assert antmaze.success(states[-STAY - 1 :]).all(), "it stays there"
    assert episode.rewards.argmax() == episode.rows - STAY - 1
    assert episode.rewards.sum() == 1
    assert episode.timeouts[-1]
    corners = [np.abs(states[:, :2] - corner).max(axis=1).min() for corner in ((8, 0), (8, 8))]
    assert max(corners) < 1.5
    np.testing.assert_allclose(pointumaze.in_ant_frame(pointumaze.in_point_frame(states)), states, atol=1e-6)


def test_public_trajectories_of_the_point_fit_into_the_ants_maze() -> None:
    path = SHARED_DATA / "maze2d-umaze-v1-expert.hdf5"
    if not path.exists():
        pytest.skip(f"{path} is absent; set SMODICE_SHARED_DATA to its folder")
    with h5py.File(path) as file:
        states = np.asarray(file["observations"][:5000])
    assert antmaze.possible(pointumaze.in_ant_frame(states)).all()
    assert not antmaze.possible(states).all(), "in its own frame it would walk through walls"


# --- data sets ---


def write_d4rl(path: Path, walks: list[Transitions], **columns: Any) -> Path:
    """Walks as D4RL's file has them: terminals and rewards in every row near the goal, no next states."""
    states = np.concatenate([walk.observations for walk in walks])
    inside = antmaze.success(states)
    whole = {
        "observations": states,
        "actions": np.concatenate([walk.actions for walk in walks]),
        "rewards": inside.astype(np.float32),
        "terminals": inside,
        "timeouts": np.concatenate([walk.timeouts for walk in walks]),
    }
    return write_file(path, **(whole | columns))


def test_terminals_in_clusters_do_not_cut_the_walks_of_d4rls_file(walks: list[Transitions], tmp_path: Path) -> None:
    path = write_d4rl(tmp_path / "walks.hdf5", walks)
    found = rows_of(f"file:{path}", ENV)
    assert found.episodes == WALKS
    assert found.rows == sum(walk.rows - 1 for walk in walks), "the last row's next state is not in the file"
    assert not found.terminals.any()
    assert found.timeouts.sum() == WALKS
    assert set(found.returns()) <= {0.0, 1.0}
    assert sum(found.returns()) == sum(walk.rewards.any() for walk in walks)
    ninth = rows_of(f"file:{path}#traj=8", ENV)
    np.testing.assert_array_equal(ninth.observations, walks[8].observations[:-1])


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no timeouts": ({"timeouts": None}, "without 'timeouts' nothing says where its episodes end"),
    "another maze": ({"shift": 20.0}, "cannot be antmaze-umaze's, first number 0"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_file_that_is_not_of_this_maze_is_refused(case: str, walks: list[Transitions], tmp_path: Path) -> None:
    change, message = BAD[case]
    change = dict(change)
    shift = change.pop("shift", 0.0)
    moved = np.concatenate([walk.observations for walk in walks[:2]]) + shift * (np.arange(29) < 2)
    path = write_d4rl(tmp_path / "walks.hdf5", walks[:2], observations=moved, **change)
    sentence = refuse(
        3, "build-dataset", "--env", ENV, "--offline", f"file:{path}", "--expert", f"sim:{POINT}#traj=0",
        "--expert-dims", "0:2", "--out", tmp_path / "d.h5",
    )  # fmt: skip
    assert message in sentence
    assert not (tmp_path / "d.h5").exists()


def test_an_expert_in_another_frame_is_refused(walks: list[Transitions], tmp_path: Path) -> None:
    states = pointumaze.in_point_frame(sim._episode(POINT, 0, 0).observations)
    expert = write_file(tmp_path / "point.hdf5", len(states), observations=states, timeouts=None)
    offline = write_d4rl(tmp_path / "walks.hdf5", walks[:2])
    sentence = refuse(
        3, "build-dataset", "--env", ENV, "--offline", f"file:{offline}", "--expert", f"file:{expert}#traj=0",
        "--expert-dims", "0:2", "--out", tmp_path / "d.h5",
    )  # fmt: skip
    assert "states cannot be antmaze-umaze's" in sentence


def test_an_expert_outside_the_range_of_the_data_is_told(tmp_path: Path) -> None:
    """Of any environment: here a point observed in centimetres."""
    states = 100 * np.random.default_rng(0).uniform(1, 7, (30, 4))
    expert = write_file(tmp_path / "expert.hdf5", 30, observations=states)
    done = succeed(
        "build-dataset", "--env", "pointmass-4direction", "--offline", "sim:pointmass-4direction#200",
        "--expert", f"file:{expert}#traj=0", "--out", tmp_path / "d.h5",
    )  # fmt: skip
    assert "100 % of the expert's states lie outside the offline data in dimension 0" in done.stderr
    assert "never passes pointmass-4direction's own success test" in done.stderr


def test_a_kind_that_does_not_exist_is_told_with_the_nearest() -> None:
    with pytest.raises(Exception, match="nothing to simulate") as caught:
        sim.behaviour("antmaze-umaze-reverse")
    assert "antmaze-umaze-reversed" in caught.value.hint  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", ["point", "examples"])
def test_every_algorithm_that_fits_runs(kind: str, walks: list[Transitions], tmp_path: Path) -> None:
    """From D4RL's layout to policies, few steps each."""
    path = write_d4rl(tmp_path / "walks.hdf5", walks[:4])
    point = kind == "point"
    expert = (f"sim:{POINT}#traj=0", "--expert-dims", "0:2") if point else (f"file:{path}#success=50",)
    data, few = tmp_path / "dataset.h5", ("--steps", "3", "--set", "hidden=8", "--set", "batch=8")
    succeed("build-dataset", "--env", ENV, "--offline", f"file:{path}", "--expert", *expert, "--out", data)
    succeed("train-disc", "--data", data, *few)
    succeed("train-value", "--disc", tmp_path / "disc.safetensors", *few)
    succeed("train-policy", "--value", tmp_path / "value.safetensors", *few)
    succeed("train-policy", "--algo", "oril", "--disc", tmp_path / "disc.safetensors", *few)
    for algo in ("bc", "td3bc") if point else ("bc", "rce"):
        succeed("train-policy", "--algo", algo, "--data", data, *few)
    if point:
        succeed("train-disc", "--algo", "sail", "--data", data, *few)
        succeed("train-policy", "--algo", "sail", "--disc", tmp_path / "sail" / "disc.safetensors", *few)
    assert len(list(tmp_path.glob("**/policy.safetensors"))) == (5 if point else 4)


def test_a_policy_can_be_scored_with_random_goals(tmp_path: Path) -> None:
    policy = policy_file(tmp_path / "policy.safetensors", ENV, ENV)
    command = ("eval", "--policy", policy, "--episodes", "1", "--threads", "1", "--json")
    found = succeed(*command, "--set", f"env={RANDOM_GOAL}", "--out", tmp_path / "goals.json").json
    assert found["score"]["success_rate"] == 0
    assert RANDOM_GOAL in (tmp_path / "goals.json").read_text()
    sentence = refuse(4, *command[:-1], "--set", "env=hopper", "--out", tmp_path / "other.json")
    assert "hopper has other states or actions" in sentence


def test_gymnasium_knows_no_second_antmaze() -> None:
    """Ours is declared once, under the name that the tool lists."""
    listed = succeed("envs", "--json").json
    assert listed[ENV]["kinds"] == ["reversed"]
    assert listed[ENV]["steered"] == "ant-heading*.safetensors"
    assert not [name for name in gymnasium.registry if name.startswith("smodice/Ant")]
