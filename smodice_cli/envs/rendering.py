"""Pictures of MuJoCo environments without a screen, and without the effects that make software rendering slow."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from smodice_cli.errors import ConfigError

if TYPE_CHECKING:
    import mujoco

FRAME_SIZE = 480  # pixels
TRACKING = "track"  # how gymnasium's models name the camera that follows the body


def new_renderer(model: mujoco.MjModel) -> mujoco.Renderer:
    """An off-screen renderer; software rendering takes 16 ms a frame without shadows and antialiasing, 280 with."""
    import mujoco

    model.vis.quality.offsamples = 0
    try:
        _select_gl_backend()
        renderer = mujoco.Renderer(model, FRAME_SIZE, FRAME_SIZE)
    except Exception as error:  # each OpenGL backend fails in its own way
        hint = "install EGL or OSMesa and set MUJOCO_GL=egl or MUJOCO_GL=osmesa"
        raise ConfigError(f"cannot render: no working OpenGL backend ({error})", hint) from error
    renderer.scene.flags[mujoco.mjtRndFlag.mjRND_SHADOW] = 0
    renderer.scene.flags[mujoco.mjtRndFlag.mjRND_REFLECTION] = 0
    return renderer


def _select_gl_backend() -> None:
    """Let MuJoCo render without a screen where there is none, unless the user has chosen a backend."""
    if sys.platform == "linux" and not os.environ.get("DISPLAY") and not os.environ.get("MUJOCO_GL"):
        os.environ["MUJOCO_GL"] = "egl"
        # mujoco reads the variable when it is imported, which has happened by now.
        importlib.reload(importlib.import_module("mujoco.gl_context"))


def camera_of(env: Any) -> tuple[Callable[[], np.ndarray], Callable[[], None]]:
    """(take a picture, free the renderer) of an environment made with render_mode="rgb_array"."""
    inner = env.unwrapped
    if not hasattr(inner, "model"):
        return env.render, env.close  # it draws itself
    renderer = new_renderer(inner.model)
    names = [inner.model.camera(index).name for index in range(inner.model.ncam)]
    camera = TRACKING if TRACKING in names else -1

    def picture() -> np.ndarray:
        renderer.update_scene(inner.data, camera=camera)
        return renderer.render()

    def close() -> None:
        renderer.close()
        env.close()

    return picture, close


def put(env: Any, observation: np.ndarray) -> None:
    """Put an environment into the state that it observed: qpos and qvel.

    A walking body leaves out the first coordinates, how far it has come; they are 0.
    """
    inner = env.unwrapped
    model = inner.model if hasattr(inner, "model") else inner.maze.model if hasattr(inner, "maze") else None
    if model is None or model.nq + model.nv < len(observation):
        raise ConfigError(f"{type(inner).__name__}'s observations do not say which state to draw")
    state = np.append(np.zeros(model.nq + model.nv - len(observation)), observation)
    inner.set_state(*np.split(state, [model.nq]))


def pictures_of(name: str, observations: np.ndarray) -> list[np.ndarray]:
    """The environment in the states of these observations."""
    from smodice_cli.envs import registry

    env = registry.make(name, render_mode="rgb_array")
    env.reset(seed=0)
    picture, close = camera_of(env)
    try:
        found = []
        for observation in observations:
            put(env, observation)
            found.append(picture().copy())
        return found
    finally:
        close()
