"""Pictures of MuJoCo environments without a screen, and without the effects that make software rendering slow."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

from smodice_cli import envs
from smodice_cli.errors import ConfigError
from smodice_cli.lazy import np

if TYPE_CHECKING:
    import mujoco

FRAME_SIZE = 480  # pixels
CAMERAS = ("top", "track")  # the first that a model has: ours from above, or gymnasium's, which follows the body


def import_mujoco() -> Any:
    """mujoco, whatever MUJOCO_GL says: importing it loads that backend, and only pictures need one."""
    chosen = os.environ.pop("MUJOCO_GL", None)
    try:
        return importlib.import_module("mujoco")
    finally:
        if chosen is not None:
            os.environ["MUJOCO_GL"] = chosen


def new_renderer(model: mujoco.MjModel) -> mujoco.Renderer:
    """An off-screen renderer; software rendering takes 16 ms a frame without shadows and antialiasing, 280 with."""
    mujoco = import_mujoco()
    mujoco.Renderer._gl_context = mujoco.Renderer._mjr_context = None  # so that a half-made one can be closed
    model.vis.quality.offsamples = 0
    try:
        _select_gl_backend()
        renderer = mujoco.Renderer(model, FRAME_SIZE, FRAME_SIZE)
    except Exception as error:  # each OpenGL backend fails in its own way
        hint = "install EGL (Debian, Ubuntu: apt-get install libegl1 libgl1), or OSMesa and set MUJOCO_GL=osmesa"
        raise ConfigError(f"cannot render: no working OpenGL backend ({error})", hint) from error
    renderer.scene.flags[mujoco.mjtRndFlag.mjRND_SHADOW] = 0
    renderer.scene.flags[mujoco.mjtRndFlag.mjRND_REFLECTION] = 0
    return renderer


def _select_gl_backend() -> None:
    """Take the backend that the user has chosen; without a choice and without a screen, the one that needs none."""
    if sys.platform == "linux" and not os.environ.get("DISPLAY") and not os.environ.get("MUJOCO_GL"):
        os.environ["MUJOCO_GL"] = "egl"
    # mujoco reads the variable when it is imported, which has happened by now.
    importlib.reload(importlib.import_module("mujoco.gl_context"))


@contextmanager
def camera(env: Any) -> Iterator[Callable[[], np.ndarray]]:
    """Takes pictures of an environment made with render_mode="rgb_array", which is closed in the end."""
    inner = env.unwrapped
    with closing(env):
        if not hasattr(inner, "model"):
            yield env.render  # it draws itself
            return
        names = [inner.model.camera(index).name for index in range(inner.model.ncam)]
        chosen = next((name for name in CAMERAS if name in names), -1)
        with closing(new_renderer(inner.model)) as renderer:

            def picture() -> np.ndarray:
                renderer.update_scene(inner.data, camera=chosen)
                return renderer.render()

            yield picture


def put(env: Any, observation: np.ndarray) -> None:
    """Put an environment into the state that it observed: qpos and qvel.

    A walking body leaves out the first coordinates, how far it has come; they are 0.
    """
    inner = env.unwrapped
    if hasattr(inner, "put"):  # it knows better
        inner.put(observation)
        return
    model = inner.model if hasattr(inner, "model") else inner.maze.model if hasattr(inner, "maze") else None
    if model is None or model.nq + model.nv < len(observation):
        raise ConfigError(f"{type(inner).__name__}'s observations do not say which state to draw")
    state = np.append(np.zeros(model.nq + model.nv - len(observation)), observation)
    inner.set_state(*np.split(state, [model.nq]))


def pictures_of(name: str, observations: np.ndarray) -> list[np.ndarray]:
    """The environment in the states of these observations."""
    env = envs.make(name, render_mode="rgb_array")
    env.reset(seed=0)
    found = []
    with camera(env) as picture:
        for observation in observations:
            put(env, observation)
            found.append(picture().copy())
    return found
