"""PointMass-4Direction: a force-driven point in an open square with a goal on each side, on real MuJoCo.

The paper's "adapted maze2d": D4RL's point maze physics, a start in the middle and four goals, of which one
(left, by default) is the task. Also here: the waypoint controller that makes its data. mujoco loads only when
a maze is made.
"""

from __future__ import annotations

import importlib
import weakref
from collections import deque
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from numpy.typing import ArrayLike, NDArray

from smodice_cli.envs.rendering import FRAME_SIZE, new_renderer
from smodice_cli.errors import ConfigError

if TYPE_CHECKING:
    import mujoco

Cell = tuple[int, int]

# A map is read as [row, column] = [x, y]; '#' is a wall, every other character is free.
OPEN_MAP = ("#########", *["#OOOOOOO#"] * 7, "#########")
U_MAP = ("#####", "#GOO#", "###O#", "#OOO#", "#####")

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

MAX_SPEED = 5.0  # per axis, enforced before each step: a step's outcome may exceed it by one step's acceleration
ORIGIN = 1.2  # world coordinate of qpos 0 on both axes; wall cell i is centred at world i + 1, 0.2 short of that
CAMERA_HEIGHT = 40.0


# --- physics ---


def maze_xml(map_lines: Sequence[str], sites: str = "") -> str:
    """The MuJoCo model of a map, with D4RL's point-maze constants; `sites` is extra XML for markers."""
    walls = "".join(
        f'<geom type="box" pos="{x + 1} {y + 1} 0" size="0.5 0.5 0.2" rgba="0.29 0.33 0.41 1"/>'
        for x, line in enumerate(map_lines)
        for y, tile in enumerate(line)
        if tile == "#"
    )
    width, height = len(map_lines), len(map_lines[0])
    middle = f"{(width + 1) / 2} {(height + 1) / 2}"
    # The floor is for the eye only: a contact along z could not move a point that slides in x and y. It is
    # half a cell larger and off the middle, which puts the lines of its pattern on the borders of the cells.
    floor_place, floor_size = f"{width / 2 + 1} {height / 2 + 1}", f"{(width + 1) / 2} {(height + 1) / 2}"
    # Far away with a narrow view, so that the walls' sides hardly show.
    fovy = np.degrees(2 * np.arctan(max(width, height) / 2 / CAMERA_HEIGHT))
    return f"""
    <mujoco model="pointmaze">
      <compiler angle="radian" inertiafromgeom="true"/>
      <option timestep="0.01" gravity="0 0 0" iterations="20" integrator="Euler"/>
      <visual>
        <global offwidth="{FRAME_SIZE}" offheight="{FRAME_SIZE}"/>
        <quality offsamples="0"/>
        <headlight ambient="0.45 0.45 0.45" diffuse="0.55 0.55 0.55" specular="0 0 0"/>
      </visual>
      <default>
        <joint damping="1" limited="false"/>
        <geom density="1000" margin="0.002" condim="1" friction="0.5 0.1 0.1" contype="2" conaffinity="1"/>
      </default>
      <asset>
        <texture name="floor" type="2d" builtin="checker" rgb1="0.93 0.94 0.95" rgb2="0.87 0.89 0.91"
                 width="256" height="256"/>
        <material name="floor" texture="floor" texrepeat="{floor_size}"/>
      </asset>
      <worldbody>
        <geom type="plane" pos="{floor_place} -0.1" size="{floor_size} 1" material="floor"
              contype="0" conaffinity="0"/>
        {walls}
        {sites}
        <camera name="top" pos="{middle} {CAMERA_HEIGHT}" fovy="{fovy}"/>
        <body name="point" pos="{ORIGIN} {ORIGIN} 0">
          <joint name="x" type="slide" axis="1 0 0"/>
          <joint name="y" type="slide" axis="0 1 0"/>
          <geom type="sphere" size="0.1" contype="1" rgba="0.12 0.35 0.80 1"/>
          <site type="cylinder" pos="0 0 -0.06" size="0.17 0.005" rgba="0.12 0.35 0.80 0.3"/>
        </body>
      </worldbody>
      <actuator>
        <motor joint="x" gear="100" ctrllimited="true" ctrlrange="-1 1"/>
        <motor joint="y" gear="100" ctrllimited="true" ctrlrange="-1 1"/>
      </actuator>
    </mujoco>"""


class PointMaze:
    """The physics alone: a point of radius 0.1 pushed along x and y between the walls of a map."""

    def __init__(self, map_lines: Sequence[str], sites: str = "") -> None:
        import mujoco

        self.model = mujoco.MjModel.from_xml_string(maze_xml(map_lines, sites))
        self.data = mujoco.MjData(self.model)
        # Bound once: looking an attribute up in the bindings costs about as much as simulating the step.
        self._mj_step = mujoco.mj_step
        self._mj_reset = mujoco.mj_resetData
        self._qpos, self._qvel, self._ctrl = self.data.qpos, self.data.qvel, self.data.ctrl

    def set_state(self, position: ArrayLike, velocity: ArrayLike) -> NDArray[np.float64]:
        """Put the point somewhere, forgetting all that came before, and return the observation."""
        self._mj_reset(self.model, self.data)
        self._qpos[:] = position
        self._qvel[:] = velocity
        return self.observation()

    def observation(self) -> NDArray[np.float64]:
        """Position and velocity, as a new array of four."""
        return np.concatenate((self._qpos, self._qvel))

    def step(self, action: ArrayLike) -> NDArray[np.float64]:
        """Advance by one 0.01 s step under this force; MuJoCo itself clips the force to [-1, 1]."""
        for axis, speed in enumerate(self._qvel.tolist()):
            if not -MAX_SPEED <= speed <= MAX_SPEED:
                self._qvel[axis] = MAX_SPEED if speed > 0 else -MAX_SPEED
        self._ctrl[:] = action
        self._mj_step(self.model, self.data)
        return self.observation()


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

    metadata = {"render_modes": ["rgb_array"], "render_fps": 100}  # noqa: RUF012 (gymnasium's own declaration)

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


def shortest_path(map_lines: Sequence[str], start: Cell, target: Cell) -> list[Cell]:
    """The cells after `start` up to `target`, or just the target where both are the same."""
    came_from: dict[Cell, Cell] = {start: start}
    queue = deque([start])
    while queue and target not in came_from:
        x, y = cell = queue.popleft()
        for neighbour in ((x + 1, y), (x - 1, y), (x, y + 1), (x, y - 1)):
            if neighbour not in came_from and map_lines[neighbour[0]][neighbour[1]] != "#":
                came_from[neighbour] = cell
                queue.append(neighbour)
    if target not in came_from:
        raise ValueError(f"no way from cell {start} to cell {target}")
    path = [target]
    while came_from[path[-1]] != start:
        path.append(came_from[path[-1]])
    return path[::-1]


class WaypointController:
    """D4RL's maze2d expert: a PD controller that visits the cells of a shortest path one after the other.

    Each cell but the last is aimed at with a one-sided error, uniform in [-0.2, 0] on both axes, drawn when
    the path is planned; the next one is taken on once the point is within 0.1. `solved` is set when the point
    is that near to the last. (D4RL also asks that the point moved less than 0.1 since the last call, which it
    always has at this speed.)
    """

    P_GAIN, D_GAIN = 10.0, -1.0
    THRESHOLD = 0.1
    WAYPOINT_NOISE = 0.2

    def __init__(self, map_lines: Sequence[str], rng: np.random.Generator) -> None:
        self.map_lines = map_lines
        self.rng = rng
        self.solved = False
        self._target: Cell | None = None
        self._waypoints: deque[NDArray[np.float64]] = deque()

    def act(self, observation: NDArray[np.floating], target: Sequence[float]) -> NDArray[np.float64]:
        """The clipped force towards the current waypoint on the way to the target's cell."""
        position, velocity = observation[:2], observation[2:4]
        if self._target != _cell(target):
            self._plan(_cell(position), _cell(target))
        self.solved = _distance(position, self._waypoints[-1]) < self.THRESHOLD
        waypoint = self._waypoints[-1 if self.solved else 0]
        if len(self._waypoints) > 1 and _distance(position, waypoint) < self.THRESHOLD:
            self._waypoints.popleft()  # for the next call: this force still belongs to the one just reached
        return np.clip(self.P_GAIN * (waypoint - position) + self.D_GAIN * velocity, -1.0, 1.0)

    def _plan(self, start: Cell, target: Cell) -> None:
        path = np.array(shortest_path(self.map_lines, start, target), dtype=np.float64)
        path[:-1] -= self.rng.uniform(0.0, self.WAYPOINT_NOISE, size=(len(path) - 1, 2))
        self._target, self._waypoints = target, deque(path)


def _cell(position: Sequence[float] | NDArray[np.floating]) -> Cell:
    """The cell a position is in."""
    shift = ORIGIN - 1.0  # qpos 0 lies this far beyond the centre of cell 0
    return round(float(position[0]) + shift), round(float(position[1]) + shift)


def _distance(a: NDArray[np.floating], b: NDArray[np.floating]) -> float:
    return float(np.hypot(a[0] - b[0], a[1] - b[1]))


@cache
def _demonstration_maze() -> PointMaze:
    return PointMaze(OPEN_MAP)


def demonstrate(seed: int, episode_index: int) -> dict[str, NDArray[Any]]:
    """One whole episode of the waypoint controller to goal number `episode_index % 4`, in D4RL's layout.

    As in the public data the episode ends where the controller is done (within 0.1), not where the
    environment would end it (0.17): its last rows lie inside the goal and are the success states. The last
    row's observation is the solved state, and it is the row that pays 1 if the goal is left. This gives the
    published 602 whole episodes of 79-87 steps in 50,000 transitions; ending at 0.17 would give about 628,
    no waypoint noise about 605 of 81-84 steps.
    """
    rng = np.random.default_rng(np.random.SeedSequence([seed, episode_index]))
    goal = list(GOALS)[episode_index % len(GOALS)]
    maze = _demonstration_maze()
    controller = WaypointController(OPEN_MAP, rng)
    observations = [maze.set_state(*_sample_start(rng))]
    actions: list[NDArray[np.float32]] = []
    while not controller.solved and len(actions) < HORIZON:
        # The data hold float32; simulating exactly what is stored makes the file replayable.
        actions.append(controller.act(observations[-1], GOALS[goal]).astype(np.float32))
        observations.append(maze.step(actions[-1]))
    states = np.asarray(observations, dtype=np.float32)
    last = np.arange(len(actions)) == len(actions) - 1
    return {
        "observations": states[:-1],
        "actions": np.asarray(actions),
        "rewards": (last & controller.solved & (goal == "left")).astype(np.float32),
        "next_observations": states[1:],
        "terminals": last & controller.solved,
        "timeouts": last & (not controller.solved),
    }
