"""The MuJoCo locomotion tasks with D4RL's (v2) conventions on current gymnasium, and two mismatched bodies.

gymnasium's v5 classes differ from v2 in three ways, all undone here: Walker2d's two feet had different
friction (the older XML), Ant's observation had no contact forces (27 numbers), and the healthy reward is also
paid on the step that ends the episode.
"""

from __future__ import annotations

import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium.envs.mujoco as gymnasium_mujoco
from gymnasium.envs.mujoco.ant_v5 import AntEnv
from gymnasium.envs.mujoco.half_cheetah_v5 import HalfCheetahEnv
from gymnasium.envs.mujoco.hopper_v5 import HopperEnv
from gymnasium.envs.mujoco.walker2d_v5 import Walker2dEnv

_ASSETS = Path(gymnasium_mujoco.__file__).parent / "assets"

TORSO_SCALE = 0.5  # HalfCheetah-Short
LEG_SCALE = 0.75  # Ant-Disabled
FRONT_LEGS = ("front_left_leg", "front_right_leg")
HIPS = ("bthigh", "fthigh")


class Hopper(HopperEnv):
    """One-legged hopper, 11 observations, 3 actions."""

    @property
    def healthy_reward(self) -> float:
        """Paid on every step, the terminating one included, as in v2."""
        return self._healthy_reward


class Walker2d(Walker2dEnv):
    """Two-legged walker, 17 observations, 6 actions."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"xml_file": "walker2d.xml", **kwargs})

    @property
    def healthy_reward(self) -> float:
        """Paid on every step, the terminating one included, as in v2."""
        return self._healthy_reward


class HalfCheetah(HalfCheetahEnv):
    """Two-legged runner that never falls out of an episode, 17 observations, 6 actions."""


class Ant(AntEnv):
    """Four-legged ant, 27 observations, 8 actions."""

    def __init__(self, **kwargs: Any) -> None:
        conventions = {"include_cfrc_ext_in_observation": False, "contact_cost_weight": 0.0}
        super().__init__(**{**conventions, **kwargs})

    @property
    def healthy_reward(self) -> float:
        """Paid on every step, the terminating one included, as in v2."""
        return self._healthy_reward


class HalfCheetahShort(HalfCheetah):
    """HalfCheetah with a torso of half the length; legs and head are untouched."""

    def __init__(self, **kwargs: Any) -> None:
        _with_edited_body(super().__init__, "half_cheetah.xml", shorten_torso, kwargs)


class AntDisabled(Ant):
    """Ant whose two front legs are three quarters as long."""

    def __init__(self, **kwargs: Any) -> None:
        _with_edited_body(super().__init__, "ant.xml", shrink_front_legs, kwargs)


def shorten_torso(root: ElementTree.Element) -> None:
    """Halve the cheetah's torso capsule and move both hips to its new ends."""
    torso = _find(root, "body", "torso")
    _scale(_find(torso, "geom", "torso"), "fromto", TORSO_SCALE)
    for hip in HIPS:
        _scale(_find(torso, "body", hip), "pos", TORSO_SCALE)


def shrink_front_legs(root: ElementTree.Element) -> None:
    """Scale the length of every segment of the ant's front legs; their thickness stays."""
    for name in FRONT_LEGS:
        leg = _find(root, "body", name)
        for geom in leg.iter("geom"):
            _scale(geom, "fromto", LEG_SCALE)
        for body in leg.iter("body"):
            _scale(body, "pos", LEG_SCALE)


def _find(root: ElementTree.Element, tag: str, name: str) -> ElementTree.Element:
    found = root.find(f".//{tag}[@name='{name}']")
    if found is None:
        raise RuntimeError(f"gymnasium's model has no {tag} named {name}")
    return found


def _scale(element: ElementTree.Element, attribute: str, factor: float) -> None:
    numbers = (float(number) * factor for number in element.attrib[attribute].split())
    element.set(attribute, " ".join(f"{number:.10g}" for number in numbers))


def _with_edited_body(
    build: Callable[..., None],
    asset: str,
    edit: Callable[[ElementTree.Element], None],
    kwargs: dict[str, Any],
) -> None:
    """Call a gymnasium constructor on an edited copy of its own model, which it can only read from a file."""
    tree = ElementTree.parse(_ASSETS / asset)
    edit(tree.getroot())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / asset
        tree.write(path)
        build(**{"xml_file": str(path), **kwargs})
