"""An ant that walks in any direction: one policy that walks along +x, a turned frame, and the ant's symmetry.

The frame is turned so that the wanted direction is +x, and the four legs, which are alike, are renamed so that the body
looks within 45 degrees of it. `ant-heading` is the task that the policy was trained on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

ANKLE = np.array([1.0, -1.0, -1.0, 1.0])  # which way each leg's ankle turns, seen from the leg
MOTOR_LEG = np.array([3, 0, 1, 2])  # the leg of each pair of motors
QUARTERS = ((1.0, 0.0), (0.0, 1.0), (-1.0, 0.0), (0.0, -1.0))  # cosine and sine of whole quarter turns
_LEGS = np.arange(4)


def _turns(shift: int) -> tuple[NDArray[np.intp], Array]:
    """For each leg the one that is `shift` further, and the signs (hip, ankle) between the two."""
    other = (_LEGS + shift) % 4
    return other, np.stack([np.ones(4), ANKLE * ANKLE[other]], axis=1)


_BACK, _FORTH = [_turns(-k) for k in range(4)], [_turns(k) for k in range(4)]


def canonical(state: NDArray[Any], heading: float) -> tuple[Array, int]:
    """qpos and qvel (29) seen along `heading`: 27 numbers, without the place, and by how many legs it was turned."""
    c, s = np.cos(heading / 2), -np.sin(heading / 2)
    w, x, y, z = state[3:7].tolist()
    w, x, y, z = c * w - s * z, c * x - s * y, c * y + s * x, c * z + s * w  # the frame is turned by -heading
    yaw = np.arctan2(2 * (w * z + x * y), 1 - 2 * (y * y + z * z))
    quarters = round(yaw / (np.pi / 2))
    c, s = np.cos(-quarters * np.pi / 4), np.sin(-quarters * np.pi / 4)
    w, x, y, z = w * c - z * s, x * c + y * s, y * c - x * s, z * c + w * s  # the body by whole quarters
    sign = -1.0 if w < 0 else 1.0
    shift = quarters % 4
    c, s = np.cos(heading), np.sin(heading)
    vx, vy, vz, wx, wy, wz = state[15:21].tolist()
    cos, sin = QUARTERS[shift]
    legs, signs = _BACK[shift]
    out = np.empty(27)
    out[:5] = state[2], sign * w, sign * x, sign * y, sign * z
    out[5:13] = (state[7:15].reshape(4, 2)[legs] * signs).ravel()
    out[13:19] = c * vx + s * vy, c * vy - s * vx, vz, cos * wx - sin * wy, sin * wx + cos * wy, wz
    out[19:] = (state[21:].reshape(4, 2)[legs] * signs).ravel()
    return out, shift


def original(action: NDArray[Any], shift: int) -> NDArray[Any]:
    """The action of an ant whose legs were renamed, for the ant as it is."""
    by_leg = np.empty((4, 2), action.dtype)
    by_leg[MOTOR_LEG] = action.reshape(4, 2)
    legs, signs = _FORTH[shift]
    turned = by_leg[legs] * signs
    return turned[MOTOR_LEG].ravel()


class Guide:
    """Steers the ant from one place to the next, with noise on the places and on the actions, as D4RL's data have.

    Each place but the last is aimed at with an error and given up for the next once it is near.
    """

    PLACE_NOISE = 0.5  # half-width of the error on both axes, in metres
    NEAR = 1.0
    ACTION_NOISE = 0.2  # standard deviation

    def __init__(self, places: Iterable[Array], rng: np.random.Generator) -> None:
        *passed, last = places
        errors = rng.uniform(-self.PLACE_NOISE, self.PLACE_NOISE, (len(passed), 2))
        self._places = deque([*(place + error for place, error in zip(passed, errors, strict=True)), last])
        self._rng = rng

    def act(self, state: Array, policy: Callable[..., NDArray[Any]]) -> NDArray[np.float32]:
        """The next action; `policy` walks along +x."""
        x, y = (self._places[0] - state[:2]).tolist()
        while len(self._places) > 1 and x * x + y * y < self.NEAR**2:
            self._places.popleft()
            x, y = (self._places[0] - state[:2]).tolist()
        seen, shift = canonical(state, np.arctan2(y, x))
        action = original(policy(seen, self._rng), shift)
        noisy = action + self.ACTION_NOISE * self._rng.standard_normal(len(action))
        return np.clip(noisy, -1.0, 1.0).astype(np.float32)
