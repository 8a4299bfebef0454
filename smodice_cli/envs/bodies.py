"""The MuJoCo locomotion tasks with D4RL's (v2) conventions on current gymnasium, and two mismatched bodies.

gymnasium's v5 classes differ from v2 in three ways, all undone here: Walker2d's two feet had different
friction (the older XML), Ant's observation had no contact forces (27 numbers), and the healthy reward is also
paid on the step that ends the episode.
"""

from __future__ import annotations

import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium.envs.mujoco as gymnasium_mujoco
import mujoco
import numpy as np
from gymnasium.envs.mujoco import MujocoEnv
from gymnasium.envs.mujoco.ant_v5 import AntEnv
from gymnasium.envs.mujoco.half_cheetah_v5 import HalfCheetahEnv
from gymnasium.envs.mujoco.hopper_v5 import HopperEnv
from gymnasium.envs.mujoco.walker2d_v5 import Walker2dEnv

_ASSETS = Path(gymnasium_mujoco.__file__).parent / "assets"

Edit = Callable[[ElementTree.Element], None]  # of a model, from its root on

TORSO_SCALE = 0.5  # HalfCheetah-Short
LEG_SCALE = 0.75  # Ant-Disabled
ACTION_NOISE = 0.1  # deviation, of actions in [-1, 1]: Hopper-Noisy


class _Body(MujocoEnv):
    """gymnasium's step, to the same bits, from arrays that are bound once.

    Its own spends more time on looking arrays up in MuJoCo's bindings, and on figures that nobody reads, than MuJoCo
    does on simulating. The healthy reward is paid on every step, the terminating one included, as in v2.
    """

    _forward_reward_weight: float
    _ctrl_cost_weight: float
    _healthy_reward: float = 0.0
    _place: np.ndarray  # whose first number is how far the body has come

    def _initialize_simulation(self) -> tuple[Any, Any]:
        model, data = super()._initialize_simulation()
        self._qpos, self._qvel, self._ctrl = data.qpos, data.qvel, data.ctrl
        self._place, self._timestep = data.qpos, model.opt.timestep
        return model, data

    def step(self, action: np.ndarray) -> tuple[np.ndarray, Any, bool, bool, dict[str, Any]]:
        before = self._place.item(0)
        self._ctrl[:] = action
        mujoco.mj_step(self.model, self.data, self.frame_skip)
        speed = (self._place.item(0) - before) / (self._timestep * self.frame_skip)
        cost = float(self._ctrl_cost_weight * np.add.reduce(action * action))  # in the action's precision
        reward = self._forward_reward_weight * speed + self._healthy_reward - cost
        return self._get_obs(), reward, not self._stands(), False, {"x_velocity": speed}

    def _stands(self) -> bool:
        """Whether the episode goes on."""
        return True

    def _get_obs(self) -> np.ndarray:
        return np.concatenate((self._qpos[1:], self._qvel))


class _Walker(_Body):
    """A body that falls; its speeds are observed up to 10."""

    _healthy_z_range: tuple[float, float]
    _healthy_angle_range: tuple[float, float]

    def _stands(self) -> bool:
        (low, high), (left, right) = self._healthy_z_range, self._healthy_angle_range
        return low < self._qpos.item(1) < high and left < self._qpos.item(2) < right

    def _get_obs(self) -> np.ndarray:
        return np.concatenate((self._qpos[1:], np.minimum(np.maximum(self._qvel, -10), 10)))


class Hopper(_Walker, HopperEnv):
    """One-legged hopper, 11 observations, 3 actions."""

    def _stands(self) -> bool:
        low, high = self._healthy_state_range
        rest = self._qpos.tolist()[2:] + self._qvel.tolist()
        return super()._stands() and all(low < number < high for number in rest)


class HopperNoisy(Hopper):
    """The same with stochastic dynamics: its motors do what they are told, give or take some noise."""

    def step(self, action: np.ndarray) -> tuple[np.ndarray, Any, bool, bool, dict[str, Any]]:
        return super().step(np.clip(action + ACTION_NOISE * self.np_random.standard_normal(len(action)), -1, 1))


class Walker2d(_Walker, Walker2dEnv):
    """Two-legged walker, 17 observations, 6 actions."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"xml_file": "walker2d.xml", **kwargs})


class HalfCheetah(_Body, HalfCheetahEnv):
    """Two-legged runner that never falls out of an episode, 17 observations, 6 actions."""


class Ant(_Body, AntEnv):
    """Four-legged ant, 27 observations, 8 actions."""

    def __init__(self, **kwargs: Any) -> None:
        conventions = {"include_cfrc_ext_in_observation": False, "contact_cost_weight": 0.0}
        super().__init__(**{**conventions, **kwargs})

    def _initialize_simulation(self) -> tuple[Any, Any]:
        model, data = super()._initialize_simulation()
        self._place = data.body(self._main_body).xpos
        return model, data

    def _stands(self) -> bool:
        low, high = self._healthy_z_range
        finite = np.isfinite(self._qpos).all() and np.isfinite(self._qvel).all()
        return bool(low <= self._qpos[2] <= high and finite)

    def _get_obs(self) -> np.ndarray:
        return np.concatenate((self._qpos[2:], self._qvel))


class HalfCheetahShort(HalfCheetah):
    """HalfCheetah with a torso of half the length and both hips at its new ends; legs and head are untouched."""

    def __init__(self, **kwargs: Any) -> None:
        parts = ("geom[@name='torso']", "body[@name='bthigh']", "body[@name='fthigh']")
        with edited_model("half_cheetah.xml", _scaled(TORSO_SCALE, parts)) as path:
            super().__init__(**{"xml_file": path, **kwargs})


class AntDisabled(Ant):
    """Ant whose two front legs are three quarters as long in every segment, and as thick."""

    def __init__(self, **kwargs: Any) -> None:
        legs = [f"body[@name='front_{side}_leg']" for side in ("left", "right")]
        parts = [leg + inside for leg in legs for inside in ("", "//body", "//geom")]
        with edited_model("ant.xml", _scaled(LEG_SCALE, parts)) as path:
            super().__init__(**{"xml_file": path, **kwargs})


def _scaled(factor: float, parts: Iterable[str]) -> Edit:
    """An edit that scales these parts of a model."""

    def edit(root: ElementTree.Element) -> None:
        for part in parts:
            found = root.findall(f".//{part}")
            if not found:
                raise RuntimeError(f"gymnasium's model has no {part}")
            for element in found:
                attribute = "fromto" if element.tag == "geom" else "pos"
                numbers = (float(number) * factor for number in element.attrib[attribute].split())
                element.set(attribute, " ".join(f"{number:.10g}" for number in numbers))

    return edit


@contextmanager
def edited_model(asset: str, edit: Edit) -> Iterator[str]:
    """The path of an edited copy of gymnasium's own model: constructors read models only from files."""
    tree = ElementTree.parse(_ASSETS / asset)
    edit(tree.getroot())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / asset
        tree.write(path)
        yield str(path)
