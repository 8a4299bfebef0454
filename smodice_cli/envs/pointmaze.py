"""D4RL's point mazes on real MuJoCo: a force-driven point between walls, and the controller that finds its way.

mujoco loads only when a maze is made.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from smodice_cli.envs.rendering import FRAME_SIZE, import_mujoco

Cell = tuple[int, int]

# A map is read as [row, column] = [x, y]; '#' is a wall, every other character is free.
OPEN_MAP = ("#########", *["#OOOOOOO#"] * 7, "#########")
U_MAP = ("#####", "#GOO#", "###O#", "#OOO#", "#####")

MAX_SPEED = 5.0  # per axis, enforced before each step: a step's outcome may exceed it by one step's acceleration
ORIGIN = 1.2  # world coordinate of qpos 0 on both axes; wall cell i is centred at world i + 1, 0.2 short of that
CAMERA_HEIGHT = 40.0  # far away with a narrow view, so that the walls' sides hardly show
MODEL = Path(__file__).with_name("pointmaze.xml")


def maze_xml(map_lines: Sequence[str], sites: str = "") -> str:
    """The MuJoCo model of a map, with D4RL's point-maze constants; `sites` is extra XML for markers."""
    walls = "".join(
        f'<geom type="box" pos="{x + 1} {y + 1} 0" size="0.5 0.5 0.2" rgba="0.29 0.33 0.41 1"/>'
        for x, line in enumerate(map_lines)
        for y, tile in enumerate(line)
        if tile == "#"
    )
    width, height = len(map_lines), len(map_lines[0])
    return MODEL.read_text().format(
        frame=FRAME_SIZE,
        walls=walls,
        sites=sites,
        origin=ORIGIN,
        middle=f"{(width + 1) / 2} {(height + 1) / 2}",
        floor=f"{width / 2 + 1} {height / 2 + 1}",
        camera=CAMERA_HEIGHT,
        fovy=np.degrees(2 * np.arctan(max(width, height) / 2 / CAMERA_HEIGHT)),
    )


class PointMaze:
    """The physics alone: a point of radius 0.1 pushed along x and y between the walls of a map."""

    def __init__(self, map_lines: Sequence[str], sites: str = "") -> None:
        mujoco = import_mujoco()
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

    def __init__(
        self, map_lines: Sequence[str], rng: np.random.Generator, end: NDArray[np.floating] | None = None
    ) -> None:
        """`end` is where in the last cell to go, its middle by default."""
        self.map_lines = map_lines
        self.rng = rng
        self.end = end
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
        if self.end is not None:
            path[-1] = self.end
        self._target, self._waypoints = target, deque(path)


def _cell(position: Sequence[float] | NDArray[np.floating]) -> Cell:
    """The cell a position is in."""
    shift = ORIGIN - 1.0  # qpos 0 lies this far beyond the centre of cell 0
    return round(float(position[0]) + shift), round(float(position[1]) + shift)


def _distance(a: NDArray[np.floating], b: NDArray[np.floating]) -> float:
    return float(np.hypot(a[0] - b[0], a[1] - b[1]))
