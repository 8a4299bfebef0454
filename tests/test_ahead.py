"""Snapshots that play in another process while the policy trains: the same files, and fewer episodes left for eval."""

from __future__ import annotations

from concurrent.futures import wait
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from conftest import digest

from smodice_cli.algos import ALGORITHMS
from smodice_cli.engine import make
from smodice_cli.parallel import Beside, ordered_map
from smodice_cli.stages import STAGES, evaluate

STEPS, SNAPSHOTS, EPISODES, CURVE = 40, 4, 5, 2


def train_and_score(run: Path, name: str, ahead: evaluate.Ahead | None, settings: evaluate.Config) -> tuple[str, ...]:
    """The digests of a small policy, its snapshots and its score."""
    policy, score = run / f"{name}.safetensors", run / f"{name}.json"
    config = ALGORITHMS["smodice"].Config(steps=STEPS, snapshots=SNAPSHOTS, hidden=16, batch=16)
    make(STAGES["train-policy"], run / "value.safetensors", policy, config, ahead=ahead)
    if ahead:
        wait(ahead.futures.values())
    make(STAGES["eval"], policy, score, settings, ahead=ahead)
    return tuple(map(digest, (policy, policy.with_suffix(".snapshots.safetensors"), score)))


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many episodes each evaluation plays itself."""
    found: list[int] = []

    def counted(function: Any, tasks: Any, workers: int) -> Any:
        found.append(len(tasks))
        return ordered_map(function, tasks, workers)

    monkeypatch.setattr(evaluate, "ordered_map", counted)
    return found


@pytest.mark.parametrize("stochastic", [False, True])
def test_the_same_files_with_fewer_episodes_left_to_play(run: Path, left: list[int], stochastic: bool) -> None:
    settings = evaluate.Config(episodes=EPISODES, curve_episodes=CURVE, stochastic=stochastic)
    with evaluate.Ahead(settings, 0) as ahead:
        beside = train_and_score(run, "beside", ahead, settings)
    assert beside == train_and_score(run, "alone", None, settings)
    # The last snapshot is the policy itself, whose episodes are among its own.
    assert left == [EPISODES, EPISODES + (SNAPSHOTS - 1) * CURVE]


def test_what_was_played_under_other_rules_is_not_taken(run: Path, left: list[int]) -> None:
    settings = evaluate.Config(episodes=EPISODES, curve_episodes=CURVE)
    with evaluate.Ahead(settings, 1) as ahead:  # another seed
        train_and_score(run, "beside", ahead, settings)
    assert left == [EPISODES + (SNAPSHOTS - 1) * CURVE]


def test_a_task_that_fails_beside_is_left_to_whoever_needs_it() -> None:
    beside = Beside()
    beside.add({"good": partial(max, 1, 2), "bad": partial(int, "no number")})
    wait(beside.futures.values())
    assert beside.finish() == {"good": 2}
    assert beside.finish() == {}
