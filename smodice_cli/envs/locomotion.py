"""The MuJoCo locomotion tasks as declarations; their classes are in `bodies`, which loads mujoco."""

from __future__ import annotations

from dataclasses import replace

from smodice_cli.envs import Environment, d4rl_tables

PLANAR = (("pitch",), ("forward speed", "vertical speed", "pitch rate"))  # a body in a plane: its angle, its rates
FREE = (
    ("quaternion w", "quaternion x", "quaternion y", "quaternion z"),
    ("forward speed", "sideways speed", "vertical speed", "roll rate", "pitch rate", "yaw rate"),
)
LEG = ("thigh", "leg", "foot")
WALKER_JOINTS = (*(f"right {part}" for part in LEG), *(f"left {part}" for part in LEG))
CHEETAH_JOINTS = tuple(f"{side} {part}" for side in ("back", "front") for part in ("thigh", "shin", "foot"))
ANT_JOINTS = tuple(f"{part} {leg}" for leg in (1, 2, 3, 4) for part in ("hip", "ankle"))


def _declare(
    name: str, cls: str, joints: tuple[str, ...], torso: tuple[tuple[str, ...], tuple[str, ...]] = PLANAR
) -> Environment:
    """A walking body: the height and angles of its torso, its joints, and how quickly each changes."""
    parent = name.partition("-")[0]  # the mismatched bodies share their parents' reference scores
    scores = d4rl_tables.reference_scores(f"{parent}-expert-v2")
    angles, rates = torso
    states = ("height", *angles, *joints, *rates, *(f"{joint} rate" for joint in joints))
    forward = states.index("forward speed")  # drawn against the height
    motors = joints[-2:] + joints[:-2] if torso is FREE else joints  # an ant's begin with its last leg
    place, scale = f"smodice_cli.envs.bodies:{cls}", (len(states), len(joints), 1000)
    return Environment(name, place, *scale, *scores, plot_dims=(forward, 0), state_names=states, action_names=motors)


HOPPER = _declare("hopper", "Hopper", LEG)
HOPPER_NOISY = replace(_declare("hopper-noisy", "HopperNoisy", LEG), policies="hopper")
WALKER2D = _declare("walker2d", "Walker2d", WALKER_JOINTS)
HALFCHEETAH = _declare("halfcheetah", "HalfCheetah", CHEETAH_JOINTS)
ANT = _declare("ant", "Ant", ANT_JOINTS, FREE)
HALFCHEETAH_SHORT = _declare("halfcheetah-short", "HalfCheetahShort", CHEETAH_JOINTS)
ANT_DISABLED = _declare("ant-disabled", "AntDisabled", ANT_JOINTS, FREE)
