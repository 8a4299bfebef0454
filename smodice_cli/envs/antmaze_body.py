"""D4RL's ant: gymnasium's own with another time step, other contacts and weaker motors; between walls, and free."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from typing import Any

import mujoco
import numpy as np
from gymnasium import spaces

from smodice_cli.envs import antmaze
from smodice_cli.envs.antmaze import CELL, FREE, GOAL, MAP, RADIUS, START
from smodice_cli.envs.bodies import Ant, edited_model
from smodice_cli.envs.heading import canonical, original
from smodice_cli.envs.pointmaze import CAMERA_HEIGHT, Cell

TIME_STEP, CONTACTS, TORQUE = "0.02", ".8 .8 .01", "30"  # D4RL's; gymnasium has 0.01, MuJoCo's own, 150


def as_in_d4rl(root: ElementTree.Element) -> None:
    """The three edits that make gymnasium's ant D4RL's."""
    for path, attribute, value in (
        ("option", "timestep", TIME_STEP),
        ("default/geom", "solimp", CONTACTS),
        *((f"actuator/motor[{number}]", "gear", TORQUE) for number in range(1, 9)),
    ):
        element = root.find(path)
        assert element is not None, f"gymnasium's ant has no {path}"
        element.set(attribute, value)


def in_the_maze(root: ElementTree.Element) -> None:
    """D4RL's ant, walls around it, a mark on the goal and a camera above."""
    as_in_d4rl(root)
    world = root.find("worldbody")
    assert world is not None
    half = CELL / 2
    for row, line in enumerate(MAP):
        for column, tile in enumerate(line):
            if tile == "#":
                x, y = antmaze.centre((row, column))
                box = {"type": "box", "pos": f"{x} {y} {half / 2}", "size": f"{half} {half} {half / 2}"}
                solid = {"contype": "1", "conaffinity": "1", "rgba": "0.10 0.12 0.15 1"}
                ElementTree.SubElement(world, "geom", box | solid)
    disc = {"type": "cylinder", "size": f"{RADIUS} 0.01", "rgba": "0.05 0.35 0.18 1"}
    ElementTree.SubElement(world, "site", {"name": "goal", "pos": f"{GOAL[0]} {GOAL[1]} 0"} | disc)
    middle, width = (FREE.min(axis=0) + FREE.max(axis=0)) / 2, CELL * (len(MAP) - 1.5)  # half of the outer walls
    view = np.degrees(2 * np.arctan(width / 2 / CAMERA_HEIGHT))
    ElementTree.SubElement(world, "camera", name="top", pos=f"{middle[0]} {middle[1]} {CAMERA_HEIGHT}", fovy=f"{view}")


class AntMaze(Ant):
    """An ant in the U-maze, 29 observations, 8 actions; reaching the goal ends the episode and pays 1.

    The goal is GOAL, or `random_goal` draws it at each reset as D4RL does.
    """

    def __init__(self, *, random_goal: bool = False, start: Cell = START, **kwargs: Any) -> None:
        self.random_goal, self.goal, self._start = random_goal, GOAL, antmaze.centre(start)
        with edited_model("ant.xml", in_the_maze) as path:
            super().__init__(**{"xml_file": path, "exclude_current_positions_from_observation": False, **kwargs})
        self.observation_space = spaces.Box(-np.inf, np.inf, (29,), np.float64)

    def advance(self, action: np.ndarray) -> np.ndarray:
        """One step of the simulation alone; returns the state."""
        self._ctrl[:] = action
        mujoco.mj_step(self.model, self.data, self.frame_skip)
        return self._get_obs()

    def step(self, action: np.ndarray) -> tuple[np.ndarray, Any, bool, bool, dict[str, Any]]:
        observation = self.advance(action)
        solved = bool(antmaze.reached(observation, self.goal))
        return observation, float(solved), solved, False, {"success": solved}

    def reset_model(self) -> np.ndarray:
        """Near the start, almost at rest; the noise on qpos leaves the quaternion to be normalised."""
        if self.random_goal:
            self.goal = antmaze.draw_goal(self.np_random)
        self.model.site("goal").pos[:2] = self.goal
        super().reset_model()
        qpos = self._qpos.copy()
        qpos[:2] += self._start
        qpos[3:7] /= np.linalg.norm(qpos[3:7])
        self.set_state(qpos, self._qvel.copy())
        return self._get_obs()

    def _get_obs(self) -> np.ndarray:
        return np.concatenate((self._qpos, self._qvel))


class AntHeading(Ant):
    """An ant without walls that walks along a direction, which changes now and then; 27 observations, 8 actions.

    It sees itself along that direction (`heading.canonical`), so that a policy for it can be steered.
    """

    FASTEST = 2.0  # metres a second; more pays no more
    CHANGES = 0.025  # probability a step of a new direction

    def __init__(self, **kwargs: Any) -> None:
        self._heading, self._shift = 0.0, 0
        with edited_model("ant.xml", as_in_d4rl) as path:
            super().__init__(**{"xml_file": path, **kwargs})

    def step(self, action: np.ndarray) -> tuple[np.ndarray, Any, bool, bool, dict[str, Any]]:
        before = self._qpos[:2].copy()
        self._ctrl[:] = original(action, self._shift)
        mujoco.mj_step(self.model, self.data, self.frame_skip)
        velocity = (self._qpos[:2] - before) / (self._timestep * self.frame_skip)
        c, s = np.cos(self._heading), np.sin(self._heading)
        along, across = c * velocity[0] + s * velocity[1], c * velocity[1] - s * velocity[0]
        upright = 1 - 2 * float(self._qpos[4] ** 2 + self._qpos[5] ** 2)  # 1 on its feet, -1 on its back
        effort = float(np.square(action).sum())
        reward = min(along, self.FASTEST) - 0.3 * abs(across) + 0.3 + 0.3 * upright - 0.02 * effort
        if self.np_random.random() < self.CHANGES:
            self._heading = self.np_random.uniform(-np.pi, np.pi)
        fallen = upright < 0 or not np.isfinite(self._qpos).all()
        return self._get_obs(), float(reward), fallen, False, {"x_velocity": along}

    def reset_model(self) -> np.ndarray:
        """Looking anywhere, told to walk anywhere."""
        super().reset_model()
        qpos, yaw = self._qpos.copy(), self.np_random.uniform(-np.pi, np.pi)
        c, s = np.cos(yaw / 2), np.sin(yaw / 2)
        w, x, y, z = qpos[3:7] / np.linalg.norm(qpos[3:7])
        qpos[3:7] = c * w - s * z, c * x - s * y, c * y + s * x, c * z + s * w
        self.set_state(qpos, self._qvel.copy())
        self._heading = self.np_random.uniform(-np.pi, np.pi)
        return self._get_obs()

    def _get_obs(self) -> np.ndarray:
        seen, self._shift = canonical(np.concatenate((self._qpos, self._qvel)), self._heading)
        return seen
