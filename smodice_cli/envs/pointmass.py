"""PointMass-4Direction: a force-driven point in an open square with a goal on each side, on real MuJoCo.

The paper's "adapted maze2d": D4RL's point maze physics, a start in the middle and four goals, of which one
(left, by default) is the task. mujoco loads only when a maze is made.
"""

from __future__ import annotations

import importlib
import weakref
from functools import cache
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from numpy.typing import ArrayLike, NDArray

from smodice_cli.data import Transitions
from smodice_cli.envs import Environment
from smodice_cli.envs.pointmaze import OPEN_MAP, ORIGIN, PointMaze, WaypointController
from smodice_cli.envs.rendering import new_renderer
from smodice_cli.errors import ConfigError

if TYPE_CHECKING:
    import mujoco

# In the order in which the data collection takes them in turn (the goal cells read off the map, row by row).
GOALS: dict[str, tuple[float, float]] = {
    "left": (1.0, 4.0),
    "down": (4.0, 1.0),
    "up": (4.0, 7.0),
    "right": (7.0, 4.0),
}
START = (4.0, 4.0)
START_NOISE = 0.1  # half-width of the uniform noise on the position, standard deviation of the velocity's
SUCCESS_RADIUS = 0.17
HORIZON = 200


# --- environment ---


def reached_goal(x: float, y: float) -> str | None:
    """The name of the goal this position is in, or None."""
    for name, (goal_x, goal_y) in GOALS.items():
        if (x - goal_x) ** 2 + (y - goal_y) ** 2 <= SUCCESS_RADIUS**2:
            return name
    return None


def success(observations: NDArray[Any]) -> NDArray[np.bool_]:
    """Which observations (N, >= 2) are in the task's goal, left."""
    offset = np.asarray(observations, dtype=np.float64)[..., :2] - GOALS["left"]
    return (offset**2).sum(-1) <= SUCCESS_RADIUS**2


def _sample_start(rng: np.random.Generator) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    position = np.asarray(START) + rng.uniform(-START_NOISE, START_NOISE, size=2)
    return position, rng.normal(scale=START_NOISE, size=2)


def _goal_sites(chosen: str) -> str:
    """Discs of the success radius, where the point succeeds; the task's goal in green with a halo."""
    sites = ""
    for name, (x, y) in GOALS.items():
        place = f'type="cylinder" pos="{x + ORIGIN} {y + ORIGIN}'
        rgba = "0.10 0.62 0.33 1" if name == chosen else "0.60 0.64 0.69 1"
        sites += f'<site {place} -0.08" size="{SUCCESS_RADIUS} 0.005" rgba="{rgba}"/>'
        if name == chosen:
            sites += f'<site {place} -0.09" size="0.29 0.005" rgba="0.66 0.87 0.74 1"/>'
    return sites


class PointMass4Direction(gymnasium.Env[NDArray[np.float64], NDArray[np.float32]]):
    """Reach one goal of four; reaching any ends the episode, and only the chosen one pays 1."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 100}

    def __init__(self, goal: str = "left", render_mode: str | None = None) -> None:
        if goal not in GOALS:
            raise ConfigError(f"unknown goal '{goal}'", f"known: {', '.join(GOALS)}")
        if render_mode not in (None, "rgb_array"):
            raise ConfigError(f"unknown render mode '{render_mode}'", "known: rgb_array")
        self.goal = goal
        self.render_mode = render_mode
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (4,), np.float64)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.maze = PointMaze(OPEN_MAP, _goal_sites(goal))
        self._renderer: mujoco.Renderer | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float64], dict[str, Any]]:
        """Start near the middle, almost at rest."""
        super().reset(seed=seed)
        return self.maze.set_state(*_sample_start(self.np_random)), {"goal": None, "success": False}

    def step(self, action: NDArray[np.float32]) -> tuple[NDArray[np.float64], float, bool, bool, dict[str, Any]]:
        """Push once; `info` names the goal reached, if any, and says whether it was the chosen one."""
        observation = self.maze.step(action)
        goal = reached_goal(*observation[:2].tolist())
        solved = goal == self.goal
        return observation, float(solved), goal is not None, False, {"goal": goal, "success": solved}

    def set_state(self, qpos: ArrayLike, qvel: ArrayLike) -> None:
        """Put the point somewhere, as gymnasium's own MuJoCo environments do."""
        self.maze.set_state(qpos, qvel)

    def render(self) -> NDArray[np.uint8] | None:
        """The maze from above, x to the right and y up, as an (H, W, 3) image."""
        if self.render_mode is None:
            gymnasium.logger.warn('nothing to render: make the environment with render_mode="rgb_array"')
            return None
        if self._renderer is None:
            self._renderer = new_renderer(self.maze.model)
            # Freed before the interpreter unloads OpenGL, also where nobody calls close().
            weakref.finalize(self, self._renderer.close)
        importlib.import_module("mujoco").mj_forward(self.maze.model, self.maze.data)
        self._renderer.update_scene(self.maze.data, camera="top")
        return self._renderer.render()

    def close(self) -> None:
        """Free the renderer, if there is one."""
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None


gymnasium.register(
    "smodice/PointMass-4Direction-v0",
    entry_point="smodice_cli.envs.pointmass:PointMass4Direction",
    max_episode_steps=HORIZON,
)


# --- demonstrations ---


_shared_maze = cache(PointMaze)  # of the demonstrations in this process


def demonstrate(seed: int, episode_index: int) -> Transitions:
    """One whole episode of the waypoint controller to goal number `episode_index % 4`.

    As in the public data the episode ends where the controller is done (within 0.1), not where the
    environment would end it (0.17): its last rows lie inside the goal and are the success states. The last
    row's observation is the solved state, and it is the row that pays 1 if the goal is left. This gives the
    published 602 whole episodes of 79-87 steps in 50,000 transitions; ending at 0.17 would give about 628,
    no waypoint noise about 605 of 81-84 steps.
    """
    rng = np.random.default_rng(np.random.SeedSequence([seed, episode_index]))
    goal = list(GOALS)[episode_index % len(GOALS)]
    maze = _shared_maze(OPEN_MAP)
    controller = WaypointController(OPEN_MAP, rng)
    observations = [maze.set_state(*_sample_start(rng))]
    actions: list[NDArray[np.float32]] = []
    while not controller.solved and len(actions) < HORIZON:
        # The data hold float32; simulating exactly what is stored makes the file replayable.
        actions.append(controller.act(observations[-1], GOALS[goal]).astype(np.float32))
        observations.append(maze.step(actions[-1]))
    rewards = np.zeros(len(actions), np.float32)
    rewards[-1] = controller.solved and goal == "left"
    return Transitions.episode(observations, actions, rewards, terminated=controller.solved)


POINTMASS = Environment(
    "pointmass-4direction",
    PointMass4Direction,
    obs_dim=4,
    act_dim=2,
    horizon=HORIZON,
    expert_score=1.0,
    plot_dims=(0, 1),
    state_names=("x", "y", "x speed", "y speed"),
    action_names=("x", "y"),
    success=success,
    demonstrator=demonstrate,
)
