"""Scripted demonstrations in the kitchen: the hand goes from waypoint to waypoint by inverse kinematics.

Every episode does four of the seven tasks in the order in which people do them, with more or less care.
"""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from smodice_cli.data import Transitions
from smodice_cli.envs.kitchen import COMPLETE_TASKS, HORIZON, JOINTS, MIXED_TASKS, REACH, START, Kitchen
from smodice_cli.envs.rendering import import_mujoco

Vector = NDArray[np.float64]
Plan = tuple[str, ...]

SKILLS = Path(__file__).with_name("kitchen_skills.toml")
ARM = 7  # joints without the fingers
ORDER = ("microwave", "kettle", "bottom burner", "top burner", "light switch", "slide cabinet", "hinge cabinet")
# Within the joints' limits, so that the hand keeps some freedom.
LOW = np.array([-2.85, -1.73, -2.85, -3.0, -2.85, 0.02, -2.85])
HIGH = np.array([2.85, 1.73, 2.85, -0.45, 2.85, 2.08, 2.85])
REST = np.array([-1.0, -1.6, 1.7, -2.0, -0.5, 1.4, 2.1])  # what the arm leans towards where the hand does not mind
LARGEST = 0.15  # rad that a joint is asked to move in a step
PATIENCE = 25  # steps after which the next waypoint is taken on, reached or not
LOOSE = 0.04  # m: waypoints that need only be passed at this distance are jittered ...
WIDE = 5.0  # ... this many times as much


@dataclass(frozen=True)
class Care:
    """How well an episode is done: the dials of its quality."""

    jitter: float  # of the waypoints, m
    action_noise: float  # deviation
    start_noise: float = 0.04  # of the arm's joints at the start, rad


@dataclass(frozen=True)
class Script:
    """What is demonstrated: plans in turn, with some care, drawn by its share of the episodes."""

    plans: Sequence[Plan]
    care: dict[Care, float]

    def plan(self, number: int) -> Plan:
        """The tasks of episode `number`."""
        return self.plans[number % len(self.plans)]


# Of 136 skills, four in each of 34 plans, 136, 124 and 81 succeed.
CAREFUL, SLOPPY, POOR = Care(0.003, 0.05), Care(0.006, 0.15), Care(0.010, 0.3)
# As in the human data, no episode does just the four tasks that kitchen-mixed scores.
OTHERS = [plan for plan in itertools.combinations(ORDER, 4) if set(plan) != set(MIXED_TASKS)]
SCRIPTS = {
    "mixed": Script(OTHERS, {CAREFUL: 0.6, SLOPPY: 0.25, POOR: 0.15}),
    "complete": Script([COMPLETE_TASKS], {CAREFUL: 1.0}),
}


@dataclass(frozen=True)
class Waypoint:
    """Where the hand should be, how it is turned, how far its fingers are open, and when it counts as there."""

    at: Vector
    turn: Vector  # a rotation matrix
    grip: float
    near: float
    turned: float
    wait: int

    @staticmethod
    def of(at: list[float], along: list[float], fingers: list[float], **rest: Any) -> Waypoint:
        """From the directions in which the hand points and in which its fingers open, made orthogonal."""
        z = np.array(along) / np.linalg.norm(along)
        y = np.array(fingers) - z * (z @ fingers)
        y /= np.linalg.norm(y)
        return Waypoint(np.array(at), np.stack([np.cross(y, z), y, z], axis=1), **rest)


@cache
def skills() -> dict[str, list[Waypoint]]:
    """The waypoints of every task."""
    return {name: [Waypoint.of(**one) for one in points] for name, points in tomllib.loads(SKILLS.read_text()).items()}


class Hand:
    """One action a step towards a waypoint, by damped least squares on the hand's Jacobian."""

    TURN_SPEED, TURN_WEIGHT = 2.2 * 0.08, 0.3  # rad a step; what a radian counts beside a metre
    DAMPING, LEANING = 3e-4, 0.15

    def __init__(self, kitchen: Kitchen, speed: float) -> None:
        self.mujoco, self.physics, self.state = import_mujoco(), kitchen.physics, kitchen.state
        self.speed = speed * 0.08  # m a step
        self.site = self.physics.site("end_effector").id
        self.joints = self.state.qpos[:ARM].copy()  # where they were asked to be
        self.jacobian = np.zeros((6, self.physics.nv))

    def distance(self, waypoint: Waypoint) -> tuple[Vector, Vector]:
        """How far away the waypoint is, and by which rotation."""
        self.mujoco.mj_kinematics(self.physics, self.state)
        self.mujoco.mj_comPos(self.physics, self.state)
        now = self.state.site_xmat[self.site].reshape(3, 3)
        quaternion, rotation = np.zeros(4), np.zeros(3)
        self.mujoco.mju_mat2Quat(quaternion, (waypoint.turn @ now.T).ravel())
        self.mujoco.mju_quat2Vel(rotation, quaternion, 1.0)
        return waypoint.at - self.state.site_xpos[self.site], rotation

    def towards(self, way: Vector, rotation: Vector) -> Vector:
        """The joints after one step on that way."""
        self.mujoco.mj_jacSite(self.physics, self.state, self.jacobian[:3], self.jacobian[3:], self.site)
        jacobian = self.jacobian[:, :ARM] * np.repeat([1.0, self.TURN_WEIGHT], 3)[:, None]
        wanted = np.concatenate([_at_most(way, self.speed), self.TURN_WEIGHT * _at_most(rotation, self.TURN_SPEED)])
        true, free = self.state.qpos[:ARM], np.ones(ARM, bool)
        for _ in range(4):  # a joint at its limit takes no part
            part = jacobian * free
            inverse = part.T @ np.linalg.inv(part @ part.T + self.DAMPING * np.eye(6))
            leaning = (np.eye(ARM) - inverse @ part) @ (self.LEANING * free * (REST - true))
            step = inverse @ wanted + leaning
            stuck = free & (((true < LOW) & (step < 0)) | ((true > HIGH) & (step > 0)))
            if not stuck.any():
                break
            free &= ~stuck
        step = np.where(free, step, 0.0)
        step *= min(1.0, LARGEST / np.abs(step).max())
        self.joints = np.clip(self.joints + step, true - LARGEST, true + LARGEST).clip(LOW - 0.02, HIGH + 0.02)
        return self.joints


def _at_most(vector: Vector, length: float) -> Vector:
    return vector * min(1.0, length / (float(np.linalg.norm(vector)) + 1e-9))


@cache
def _kitchen() -> Kitchen:
    """The one kitchen that the demonstrations of this process share."""
    return Kitchen()


def demonstrate(name: str, seed: int, number: int) -> Transitions:
    """Episode `number` of a script, without rewards."""
    rng, script = np.random.default_rng([seed, number]), SCRIPTS[name]
    care = rng.choice(len(script.care), p=list(script.care.values()))
    return play(_kitchen(), script.plan(number), list(script.care)[care], rng)


def play(kitchen: Kitchen, plan: Plan, care: Care, rng: np.random.Generator) -> Transitions:
    """One episode that does these tasks with this care, as long as the time allows."""
    start = START.copy()
    start[[0, 2, 3, 4, 5, 6]] += rng.normal(0.0, care.start_noise, 6)
    states = [kitchen.reset(seed=int(rng.integers(2**31)), options={"qpos": start})[0]]
    actions: list[NDArray[np.float32]] = []
    hand = Hand(kitchen, rng.uniform(0.38, 0.55))
    for waypoint in (waypoint for task in plan for waypoint in skills()[task]):
        passing = waypoint.near >= LOOSE and waypoint.grip > 0 and not waypoint.wait
        jitter = care.jitter * (WIDE if passing else 1.0) * rng.uniform(-1.0, 1.0, 3)
        aim = replace(waypoint, at=waypoint.at + jitter)
        stayed = 0
        for _ in range(min(PATIENCE + 1, HORIZON - len(actions))):
            way, rotation = hand.distance(aim)
            target = np.append(hand.towards(way, rotation), [aim.grip, aim.grip])
            action = (target - states[-1][:JOINTS]) / REACH
            action[:ARM] += rng.normal(0.0, care.action_noise, ARM)
            # The data hold float32; simulating exactly what is stored makes them replayable.
            actions.append(np.clip(action, -0.999, 0.999).astype(np.float32))
            states.append(kitchen.step(actions[-1])[0])
            stayed += bool(np.linalg.norm(way) < aim.near and np.linalg.norm(rotation) < aim.turned)
            if stayed > aim.wait:
                break
    return Transitions.episode(states, actions, np.zeros(len(actions)), terminated=False)
