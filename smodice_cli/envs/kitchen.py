"""Franka Kitchen: D4RL's tasks of a robot arm in a kitchen, on gymnasium-robotics' model files and real MuJoCo.

A state is the 30 positions of D4RL's: 9 joints of the robot and 21 coordinates of the objects, without the goal, which
never changes. mujoco loads only when a kitchen is made, and the package that brings the model files is never imported.
"""

from __future__ import annotations

import importlib
import importlib.util
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import ArrayLike, NDArray

from smodice_cli.data import Transitions
from smodice_cli.envs import Environment, d4rl_tables
from smodice_cli.envs.rendering import import_mujoco, new_renderer
from smodice_cli.errors import ConfigError, InputError

PACKAGE = "gymnasium_robotics"
MODEL = "envs/assets/kitchen_franka/kitchen_assets/kitchen_env_model.xml"  # in the package
HORIZON = 280
JOINTS, STATE = 9, 30

# D4RL's tasks: where in the state the object is, and where it should be.
TASKS: dict[str, tuple[list[int], list[float]]] = {
    "microwave": ([22], [-0.75]),
    "kettle": ([*range(23, 30)], [-0.23, 0.75, 1.62, 0.99, 0.0, 0.0, -0.06]),
    "bottom burner": ([11, 12], [-0.88, -0.01]),
    "top burner": ([15, 16], [-0.92, -0.01]),
    "light switch": ([17, 18], [-0.69, -0.05]),
    "slide cabinet": ([19], [0.37]),
    "hinge cabinet": ([20, 21], [0.0, 1.45]),
}
STATE_NAMES = (
    *(f"joint {number}" for number in range(1, 8)),
    *("left finger", "right finger"),
    *(
        f"{place} {part}"
        for place in ("bottom right", "bottom left", "top right", "top left")
        for part in ("knob", "burner")
    ),
    *("light switch", "light", "slide cabinet", "left hinge", "right hinge", "microwave"),
    *(f"kettle {axis}" for axis in ("x", "y", "z", "turn 1", "turn 2", "turn 3", "turn 4")),
)
NEAR = 0.3  # a task is done within this distance
MIXED_TASKS = ("microwave", "kettle", "bottom burner", "light switch")
COMPLETE_TASKS = ("microwave", "kettle", "light switch", "slide cabinet")

START = np.array(
    [
        *(1.48388023e-01, -1.76848573e00, 1.84390296e00, -2.47685760e00, 2.60252026e-01, 7.12533105e-01),
        *(1.59515394e00, 4.79267505e-02, 3.71350919e-02, -2.66279850e-04, -5.18043486e-05, 3.12877220e-05),
        *(-4.51199853e-05, -3.90842156e-06, -4.22629655e-05, 6.28065475e-05, 4.04984708e-05, 4.62730939e-04),
        *(-2.26906415e-04, -4.65501369e-04, -6.44129196e-03, -1.77048263e-03, 1.08009684e-03, -2.69397440e-01),
        *(3.50383255e-01, 1.61944683e00, 1.00618764e00, 4.06395120e-03, -6.62095997e-03, -2.68278933e-04),
    ]
)
# D4RL's uniform noise on what is observed: a tenth of the amplitudes in its table of joints.
NOISE = 0.1 * np.repeat([0.1, 0.005, 0.0005, 0.005, 0.1, 0.005, 0.1, 0.005], [9, 2, 6, 3, 3, 3, 3, 1])
LOWEST = np.array([-2.9, -1.8, -2.9, -3.1, -2.9, 0.0, -2.9, 0.0, 0.0])
HIGHEST = np.array([2.9, 1.8, 2.9, 0.0, 2.9, 3.8, 2.9, 0.04, 0.04])
FRAME_SKIP = 40  # simulation steps of 0.002 s an action
REACH = 2.0 * 0.08  # rad that an action of 1 asks for: 2 rad/s for 0.08 s


def done(states: ArrayLike, task: str) -> NDArray[np.bool_]:
    """In which states (..., 30) the task's object is where it should be."""
    where, goal = TASKS[task]
    return np.linalg.norm(np.asarray(states, np.float64)[..., where] - goal, axis=-1) < NEAR


# --- environment ------------------------------------------------------------------------------------------------------


@cache
def model_path() -> Path:
    """The kitchen's model file, found without importing the package it comes with."""
    found = importlib.util.find_spec(PACKAGE)
    if found is None or not found.submodule_search_locations:
        raise ConfigError(f"the kitchen's model files come with {PACKAGE}", "pip install 'smodice[kitchen]'")
    return Path(found.submodule_search_locations[0]) / MODEL


class Kitchen(gymnasium.Env[NDArray[np.float64], NDArray[np.float32]]):
    """Move the objects where the tasks want them: each pays 1 when it is first done, all of them end the episode.

    An action is a velocity of the joints, from where they were last *observed*, as in D4RL; `noise` scales the noise of
    the observation, on which the test of a task looks, too.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 12}

    def __init__(self, tasks: Sequence[str] = MIXED_TASKS, noise: float = 1.0, render_mode: str | None = None) -> None:
        if unknown := set(tasks) - set(TASKS):
            raise ConfigError(f"unknown kitchen task '{min(unknown)}'", f"known: {', '.join(TASKS)}")
        if render_mode not in (None, "rgb_array"):
            raise ConfigError(f"unknown render mode '{render_mode}'", "known: rgb_array")
        mujoco = import_mujoco()
        self.tasks, self.noise, self.render_mode = tuple(tasks), noise * NOISE, render_mode
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (STATE,), np.float64)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (JOINTS,), np.float32)
        self.physics = mujoco.MjModel.from_xml_path(str(model_path()))
        self.state = mujoco.MjData(self.physics)
        self.completed = dict.fromkeys(self.tasks, False)
        self._observed = START
        self._mujoco = mujoco
        self._renderer: Any = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float64], dict[str, Any]]:
        """Everything closed and the arm at rest; `options` may hold another `qpos`."""
        super().reset(seed=seed)
        self.put((options or {}).get("qpos", START))
        self.completed = dict.fromkeys(self.tasks, False)
        return self._observe(), self._told()

    def put(self, observation: ArrayLike) -> None:
        """Put arm and objects where this observation has them, at rest."""
        self._mujoco.mj_resetData(self.physics, self.state)
        self.state.qpos[:] = observation
        self._mujoco.mj_forward(self.physics, self.state)

    def step(self, action: NDArray[np.float32]) -> tuple[NDArray[np.float64], float, bool, bool, dict[str, Any]]:
        """Move for 0.08 s; `info` tells of each task whether it has been completed."""
        target = self._observed[:JOINTS] + REACH * np.clip(action, -1.0, 1.0)
        self.state.ctrl[:] = np.clip(target, LOWEST, HIGHEST)
        self._mujoco.mj_step(self.physics, self.state, FRAME_SKIP)
        observation = self._observe()
        new = [task for task in self.tasks if not self.completed[task] and done(observation, task)]
        self.completed |= dict.fromkeys(new, True)
        return observation, float(len(new)), all(self.completed.values()), False, self._told()

    def _observe(self) -> NDArray[np.float64]:
        self._observed = self.state.qpos + self.noise * self.np_random.uniform(-1.0, 1.0, STATE)
        return self._observed.copy()

    def _told(self) -> dict[str, Any]:
        return {"completed": dict(self.completed), "success": all(self.completed.values())}

    def render(self) -> NDArray[np.uint8] | None:
        """The arm and all seven objects, seen from behind its shoulder, as an (H, W, 3) image."""
        if self.render_mode is None:
            gymnasium.logger.warn('nothing to render: make the environment with render_mode="rgb_array"')
            return None
        if self._renderer is None:
            self._renderer = new_renderer(self.physics)
            # Freed before the interpreter unloads OpenGL, also where nobody calls close().
            weakref.finalize(self, self._renderer.close)
        view = self._mujoco.MjvCamera()
        view.lookat[:] = (-0.3, 0.5, 2.1)
        view.distance, view.azimuth, view.elevation = 2.3, 70.0, -32.0
        self._renderer.update_scene(self.state, camera=view)
        return self._renderer.render()

    def close(self) -> None:
        """Free the renderer, if there is one."""
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None


# --- recordings -------------------------------------------------------------------------------------------------------

# Columns of our state in recorded ones, by their width: D4RL's, with the goal behind; gymnasium-robotics' and Minari's,
# with velocities of joints and of objects.
LAYOUTS = {60: [*range(30)], 59: [*range(9), *range(18, 39)]}
GOAL = slice(30, 60)  # D4RL's columns of it: where the tasks' objects should be, 0 elsewhere


def first_completions(block: Transitions, tasks: Sequence[str]) -> NDArray[np.float32]:
    """What the environment would have paid for these rows: 1 for each task where it is first done in its episode."""
    rewards = np.zeros(block.rows, np.float32)
    for task in tasks:
        hits = np.flatnonzero(done(block.next_observations, task))
        _, first = np.unique(np.searchsorted(block.offsets, hits, "right"), return_index=True)
        rewards[hits[first]] += 1
    return rewards


def goal_of(tasks: Sequence[str]) -> NDArray[np.float64]:
    """The goal of these tasks as D4RL's files hold it."""
    goal = np.zeros(STATE)
    for where, there in (TASKS[task] for task in tasks):
        goal[where] = there
    return goal


def tasks_of(goals: NDArray[np.floating]) -> list[str]:
    """The tasks whose goal all rows hold; refuses columns that are no goal of this kitchen."""
    found = [task for task, (where, there) in TASKS.items() if np.allclose(goals[0, where], there, atol=1e-3)]
    if not np.allclose(goals, goal_of(found), atol=1e-3):
        raise InputError("columns 30 to 59 of its states are not a goal of the kitchen's tasks")
    return found


@dataclass(frozen=True)
class Scored:
    """What depends on the tasks that are scored."""

    tasks: tuple[str, ...]
    script: str = "mixed"  # what is demonstrated

    def success(self, observations: NDArray[Any]) -> NDArray[np.bool_]:
        """Which states solve all of them."""
        return np.all([done(observations, task) for task in self.tasks], axis=0)

    def recorded(self, block: Transitions) -> tuple[Transitions, str]:
        """A recording's rows with our state, first completions as rewards, and every end a cut; and a remark.

        Files hold how many tasks are done in each step, for tasks of their own, and call each last row terminal.
        """
        remark, width = "", block.observations.shape[1]
        if width == max(LAYOUTS):
            tasks = tasks_of(block.observations[:, GOAL])
            if set(tasks) != set(self.tasks):
                remark = (
                    f"its goal is another ({', '.join(tasks) or 'none'}); the rewards are for {', '.join(self.tasks)}"
                )
        columns = LAYOUTS.get(width, slice(None))
        names = ("observations", "next_observations")
        block = replace(block, **{name: getattr(block, name)[:, columns] for name in names}).cut_short()
        return replace(block, rewards=first_completions(block, self.tasks)), remark

    def demonstrate(self, seed: int, number: int) -> Transitions:
        """One episode of the scripted arm."""
        from smodice_cli.envs import kitchen_script

        episode = kitchen_script.demonstrate(self.script, seed, number)
        return replace(episode, rewards=first_completions(episode, self.tasks))


def _declare(name: str, tasks: tuple[str, ...], script: str = "mixed") -> Environment:
    scored = Scored(tasks, script)
    if len(tasks) > 1:
        low, high = d4rl_tables.reference_scores(f"{name}-v0")
    else:
        low, high = 0.0, 1.0
    return Environment(
        name,
        Kitchen,
        STATE,
        JOINTS,
        HORIZON,
        low,
        high,
        state_names=STATE_NAMES,
        plot_dims=(22, 24),  # how far the microwave is open, and how far back the kettle is
        success=scored.success,
        tasks={task: partial(done, task=task) for task in TASKS},
        demonstrator=scored.demonstrate,
        recorded_widths=tuple(LAYOUTS),
        recorded=scored.recorded,
        noise=tuple(NOISE.tolist()),
        extra=(PACKAGE, "kitchen"),
        kwargs={"tasks": tasks},
    )


MIXED = _declare("kitchen-mixed", MIXED_TASKS)
COMPLETE = _declare("kitchen-complete", COMPLETE_TASKS, "complete")
KETTLE = _declare("kitchen-kettle", ("kettle",))
MICROWAVE = _declare("kitchen-microwave", ("microwave",))
