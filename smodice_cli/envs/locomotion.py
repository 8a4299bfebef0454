"""The MuJoCo locomotion tasks as declarations; their classes are in `bodies`, which loads mujoco."""

from __future__ import annotations

from smodice_cli.envs import Environment, d4rl_tables


def _declare(name: str, cls: str, obs_dim: int, act_dim: int, *, velocity: int) -> Environment:
    """A walking body; `velocity` is the coordinate of its forward speed, drawn against its height (0)."""
    parent = name.partition("-")[0]  # the mismatched bodies share their parents' reference scores
    scores = d4rl_tables.reference_scores(f"{parent}-expert-v2")
    place = f"smodice_cli.envs.bodies:{cls}"
    return Environment(name, place, obs_dim, act_dim, 1000, *scores, plot_dims=(velocity, 0))


HOPPER = _declare("hopper", "Hopper", 11, 3, velocity=5)
WALKER2D = _declare("walker2d", "Walker2d", 17, 6, velocity=8)
HALFCHEETAH = _declare("halfcheetah", "HalfCheetah", 17, 6, velocity=8)
ANT = _declare("ant", "Ant", 27, 8, velocity=13)
HALFCHEETAH_SHORT = _declare("halfcheetah-short", "HalfCheetahShort", 17, 6, velocity=8)
ANT_DISABLED = _declare("ant-disabled", "AntDisabled", 27, 8, velocity=13)
