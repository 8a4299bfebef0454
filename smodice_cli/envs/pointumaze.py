"""The U-maze of AntMaze with a point in it, observed in the ant's frame: an expert of another body."""

from __future__ import annotations

from functools import cache
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import ArrayLike, NDArray

from smodice_cli.data import Transitions
from smodice_cli.envs import Environment
from smodice_cli.envs.antmaze import CELL, GOAL, STAY, success
from smodice_cli.envs.pointmaze import U_MAP, PointMaze, WaypointController

START = (3.0, 1.0)  # in the point's frame
START_NOISE = 0.1
HORIZON = 300  # D4RL's of maze2d-umaze


def in_ant_frame(state: ArrayLike) -> NDArray[np.float64]:
    """Position and velocity of the point (..., 4) as the ant's maze has them: turned, and four times as large."""
    x, y, vx, vy = np.moveaxis(np.asarray(state, np.float64), -1, 0)
    return CELL * np.stack([y - 1, START[0] - x, vy, -vx], axis=-1)


def in_point_frame(state: ArrayLike) -> NDArray[np.float64]:
    """The other way round."""
    x, y, vx, vy = np.moveaxis(np.asarray(state, np.float64), -1, 0) / CELL
    return np.stack([START[0] - y, x + 1, -vy, vx], axis=-1)


class PointUMaze(gymnasium.Env[NDArray[np.float64], NDArray[np.float32]]):
    """Push a point to the ant's goal; 4 observations and 2 forces, all in the ant's frame."""

    metadata: dict[str, Any] = {"render_modes": []}

    def __init__(self, render_mode: None = None) -> None:
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (4,), np.float64)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.maze = PointMaze(U_MAP)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float64], dict[str, Any]]:
        """Start at the beginning of the corridor, almost at rest."""
        super().reset(seed=seed)
        place = START + self.np_random.uniform(-START_NOISE, START_NOISE, 2)
        return in_ant_frame(self.maze.set_state(place, self.np_random.normal(scale=START_NOISE, size=2))), {}

    def step(self, action: NDArray[np.float32]) -> tuple[NDArray[np.float64], float, bool, bool, dict[str, Any]]:
        """Push once."""
        observation = in_ant_frame(self.maze.step((-action[1], action[0])))
        solved = bool(success(observation))
        return observation, float(solved), solved, False, {"success": solved}

    def set_state(self, qpos: ArrayLike, qvel: ArrayLike) -> None:
        """Put the point somewhere, in the ant's frame."""
        state = in_point_frame(np.concatenate([qpos, qvel]))
        self.maze.set_state(state[:2], state[2:])


_shared = cache(PointUMaze)  # of the demonstrations in this process


def demonstrate(seed: int, number: int) -> Transitions:
    """D4RL's waypoint controller goes to the ant's goal (within 0.4 in the ant's frame) and stays there for a while.

    The ant's does so too, and otherwise the goal would count no more than any other place on the way.
    """
    rng = np.random.default_rng([seed, number])
    env = _shared()
    state, _ = env.reset(seed=int(rng.integers(2**31)))
    goal = in_point_frame([*GOAL, 0.0, 0.0])[:2]
    controller = WaypointController(U_MAP, rng, end=goal)
    states, actions, arrived = [state], list[NDArray[np.float32]](), HORIZON
    while len(actions) < min(arrived + STAY, HORIZON):
        force = controller.act(in_point_frame(states[-1]), goal.tolist())
        actions.append(np.array([force[1], -force[0]], np.float32))
        states.append(env.step(actions[-1])[0])
        if controller.solved:
            arrived = min(arrived, len(actions))
    rewards = np.arange(1, len(actions) + 1) == arrived
    return Transitions.episode(states, actions, rewards & (arrived < HORIZON), terminated=False)


POINTMASS_UMAZE = Environment(
    "pointmass-umaze",
    PointUMaze,
    obs_dim=4,
    act_dim=2,
    horizon=HORIZON,
    expert_score=1.0,
    plot_dims=(0, 1),
    success=success,
    demonstrator=demonstrate,
)
