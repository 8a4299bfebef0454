"""AntMaze-umaze: an ant finds its way through a U-shaped corridor, with D4RL's (v2) frame and conventions.

The state is the ant's qpos and qvel, 29 numbers; the goal is no part of it. D4RL draws the goal anew in each episode,
and by default it is the middle of where D4RL draws it. The ant itself is in `antmaze_body`, which loads mujoco.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from smodice_cli.data import Transitions
from smodice_cli.envs import POLICIES, Environment, d4rl_tables
from smodice_cli.envs.heading import Guide
from smodice_cli.envs.locomotion import ANT
from smodice_cli.envs.pointmaze import U_MAP, Cell, shortest_path

if TYPE_CHECKING:
    from smodice_cli.envs.antmaze_body import AntMaze

MAP = U_MAP[::-1]  # read as [row, column] = [y, x]: the corridor of the point's U-maze, turned
CELL = 4.0  # metres; the first free cell is at (0, 0)
START, END = (1, 1), (3, 1)
GOAL = np.array([0.75, 8.75])
RADIUS = 0.5
HORIZON = 700
STRAY = 0.5  # how far, in metres, the ant's middle may lie beyond a free cell: walls give a little
STAY = 50  # steps for which a walk goes on at its goal

Act = Callable[[NDArray[Any], np.random.Generator], NDArray[Any]]  # of a policy that walks along +x (`heading`)


def centre(cell: Cell) -> NDArray[np.float64]:
    """The place (x, y) of a cell's middle."""
    return CELL * (np.array(cell[::-1], np.float64) - 1.0)


FREE = np.array([centre((i, j)) for i, line in enumerate(MAP) for j, tile in enumerate(line) if tile != "#"])


def draw_goal(rng: np.random.Generator) -> NDArray[np.float64]:
    """A goal as D4RL draws it, whose mean is GOAL."""
    return centre(END) + rng.uniform(0.0, 1.0, 2) + rng.uniform(0.0, 0.5, 2)


def reached(states: NDArray[Any], goal: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Which states (..., >= 2) lie in the goal's circle."""
    return ((np.asarray(states, np.float64)[..., :2] - goal) ** 2).sum(-1) <= RADIUS**2


def success(observations: NDArray[Any]) -> NDArray[np.bool_]:
    """Which observations (N, >= 2) are in the fixed goal."""
    return reached(observations, GOAL)


def possible(observations: NDArray[Any]) -> NDArray[np.bool_]:
    """Which observations (N, >= 2) lie in the corridor, not in a wall or in another maze."""
    offset = np.abs(np.asarray(observations, np.float64)[:, None, :2] - FREE)
    return (offset <= CELL / 2 + STRAY).all(-1).any(-1)


# --- demonstrations ---


@cache
def _body(start: Cell) -> AntMaze:
    """The ant of this process's demonstrations."""
    from smodice_cli.envs.antmaze_body import AntMaze

    return AntMaze(start=start)


def demonstrate(seed: int, number: int, *acts: Act, own_goal: bool = False, backwards: bool = False) -> Transitions:
    """One walk through the maze by way of its cells, by one of several policies that are steered in turn, and noise on
    its actions.

    Like D4RL's, each walk has a goal of its own near GOAL, and goes on there for a while, so that the data show how to
    come back after passing it. Reaching GOAL (or its `own_goal`) pays 1, once. `backwards` the walk leads from the end
    of the corridor to its beginning, the mirror image of the other.
    """
    rng = np.random.default_rng([seed, number])
    start, end = (END, START) if backwards else (START, END)
    goal = draw_goal(rng)
    aim = goal * (1, -1) + (0, centre(END)[1]) if backwards else goal
    guide = Guide([*map(centre, shortest_path(MAP, start, end)[:-1]), aim], rng)
    act, body = acts[number % len(acts)], _body(start)
    state, _ = body.reset(seed=int(rng.integers(2**31)))
    states, actions, last = [state], list[NDArray[np.float32]](), HORIZON
    while len(actions) < last:
        actions.append(guide.act(states[-1], act))
        states.append(body.advance(actions[-1]))
        if last == HORIZON and reached(states[-1], aim):
            last = min(len(actions) + STAY, HORIZON)
    solved = reached(np.array(states[1:]), goal if own_goal else GOAL)
    rewards = np.arange(last) == (solved.argmax() if solved.any() else last)
    return Transitions.episode(states, actions, rewards, terminated=False)


# --- declarations ---


def _declare(name: str, **further: Any) -> Environment:
    return Environment(
        name,
        "smodice_cli.envs.antmaze_body:AntMaze",
        29,
        8,
        HORIZON,
        *d4rl_tables.reference_scores("antmaze-umaze-v2"),
        plot_dims=(0, 1),
        state_names=("x", "y", *ANT.state_names),
        action_names=ANT.action_names,
        possible=possible,
        goes_on=True,
        steered=POLICIES / "ant-heading*.safetensors",  # half-trained, then trained: every other walk is good
        **further,
    )


ANTMAZE = _declare(
    "antmaze-umaze",
    success=success,
    demonstrator=demonstrate,
    kinds={"reversed": partial(demonstrate, backwards=True)},
)
ANTMAZE_RANDOM_GOAL = _declare(
    "antmaze-umaze-random-goal",
    demonstrator=partial(demonstrate, own_goal=True),
    kwargs={"random_goal": True},
)
ANT_HEADING = Environment(
    "ant-heading",
    "smodice_cli.envs.antmaze_body:AntHeading",
    obs_dim=27,
    act_dim=8,
    horizon=200,
    random_score=92.6,  # of uniform actions, twenty episodes: staying upright pays
    expert_score=345.6,  # of the policy that is shipped
    plot_dims=(13, 0),
)
