"""The second opinion on the weights: right about good, mixed and broken ones, silent where nothing can be chosen."""

from __future__ import annotations

import numpy as np
import pytest

from smodice_cli.algos.segments import discounted_future
from smodice_cli.data import Dataset
from smodice_cli.views.audit import audit
from smodice_cli.views.diagnostics import findings, verdict, weight_health

STEPS, EXPERTS, OTHERS = 150, 10, 90


def recorded(experts: int = EXPERTS, others: int = OTHERS, shift: float = 0.0) -> Dataset:
    """Episodes that begin alike and then drift up (the expert's) or down."""
    rng = np.random.default_rng(0)

    def walk(slope: float) -> np.ndarray:
        t = np.arange(STEPS + 1)[:, None]
        return (slope * np.clip(t - 10, 0, 40) / 10 + rng.normal(0, 0.3, (STEPS + 1, 2))).astype(np.float32)

    walks = [walk(1.0 if number < experts else -1.0) for number in range(experts + others)]
    states = np.concatenate([found[:-1] for found in walks])
    arrays = {
        "observations": states,
        "next_observations": np.concatenate([found[1:] for found in walks]),
        "mean": states.mean(axis=0),
        "std": states.std(axis=0),
        "episode_offsets": np.arange(len(walks) + 1) * STEPS,
        "expert/observations": walk(1.0) + np.float32(shift),
        "expert/offsets": np.array([0, STEPS + 1]),
    }
    return Dataset(arrays, "data", [0, 1], False, ["all"])


def of_experts(data: Dataset, share: float) -> np.ndarray:
    """Weights of which the expert's rows hold this share."""
    expert = data.episode_of_row() < EXPERTS
    return np.where(expert, share / expert.sum(), (1 - share) / (~expert).sum()) * data.rows


def level(data: Dataset, w: np.ndarray, **more: float) -> str:
    health = weight_health(w, np.zeros(len(w), int), ["all"]) | {"audit": audit(data, w, 0.99)} | more
    return verdict(findings(health))


def test_the_match_is_the_share_of_the_weight_on_the_expert_also_at_the_start_where_all_look_alike() -> None:
    data = recorded()
    base = EXPERTS / (EXPERTS + OTHERS)
    for share in (base, 0.5, 0.8, 1.0):
        found = audit(data, of_experts(data, share), 0.99)
        for part in found["parts"]:
            assert part["match"] == pytest.approx((share - base) / (1 - base), abs=0.06)
    assert audit(data, of_experts(data, 1.0), 0.99)["effective_trajectories"] == pytest.approx(EXPERTS)


def test_good_weights_are_green_and_weights_that_miss_the_expert_are_not() -> None:
    data = recorded()
    assert level(data, of_experts(data, 0.99)) == "green"
    assert level(data, of_experts(data, 0.8)) == "yellow"
    assert level(data, np.ones(data.rows)) == "red"
    assert level(data, of_experts(data, 0.0) + 1e-9) == "red"
    late_only = np.where(data.time_of_row() < 25, np.ones(data.rows), of_experts(data, 1.0) + 1e-9)
    assert level(data, late_only) == "red"  # the expert holds 98 % of the weight, but not at the start


def test_where_only_the_expert_comes_any_weights_on_it_are_good() -> None:
    """As with an expert among random episodes that end early: in later steps there is nobody else to choose."""
    whole = recorded()
    kept = (whole.episode_of_row() < EXPERTS) | (whole.time_of_row() < 30)
    arrays = whole.arrays | {name: whole[name][kept] for name in ("observations", "next_observations")}
    lengths = np.bincount(whole.episode_of_row()[kept])
    data = Dataset(arrays | {"episode_offsets": np.append(0, np.cumsum(lengths))}, "data", [0, 1], False, ["all"])
    assert audit(data, of_experts(data, 1.0), 0.99)["match"] > 0.95
    assert level(data, of_experts(data, 1.0)) == "green"
    assert level(data, np.ones(data.rows)) == "red"


def test_a_gap_in_the_weights_is_told_though_the_weight_is_the_experts() -> None:
    """As a V that was hardly trained leaves it: the policy falls before it comes to what it has learned."""
    data = recorded()
    w = of_experts(data, 1.0) * np.where(data.time_of_row() < 25, 1e-3, 1.0)
    assert level(data, w) == "yellow"  # on some tasks a policy gets over it
    health = weight_health(w, np.zeros(len(w), int), ["all"]) | {"audit": audit(data, w, 0.99)}
    found = findings(health)[0]
    assert "there is a gap from step 0 on: those steps have 0 % of the weight that later steps have" in found.text
    assert "value.steps=10000" in found.remedy
    assert "value.estimator=dual" in findings(health, {"estimator": "returns"})[0].remedy, "which has no V to train"
    between = of_experts(data, 1.0) * np.where(abs(data.time_of_row() - 62) < 38, 1e-3, 1.0)
    assert level(data, between) == "yellow"
    late = of_experts(data, 1.0) * np.where(data.time_of_row() >= 100, 1e-3, 1.0)
    assert level(data, late) == "green"  # an expert may be done before its trajectories are
    done = np.where(data.time_of_row() >= 100, 1e-6, of_experts(data, 1.0))
    assert level(data, done) == "green"  # whoever goes on after that has no weight to speak of


def test_the_discriminator_is_named_where_it_is_at_fault() -> None:
    data = recorded()
    w = np.ones(data.rows)
    health = weight_health(w, np.zeros(len(w), int), ["all"]) | {"audit": audit(data, w, 0.99), "auc": 0.04}
    assert "AUC 0.04" in findings(health)[0].text
    assert "disc.steps" in findings(health)[0].remedy


def test_data_without_anything_like_the_expert_and_experts_elsewhere_are_told() -> None:
    without = recorded(experts=0, others=100)
    said = [finding.text for finding in findings(_health(without))]
    assert any("no trajectory of the data is much like the expert" in text for text in said)
    elsewhere = recorded(shift=100.0)
    assert any("100 % of the expert's states lie outside" in finding.text for finding in findings(_health(elsewhere)))


def test_where_all_data_are_the_experts_equal_weights_are_green() -> None:
    data = recorded(experts=100, others=0)
    assert level(data, np.ones(data.rows)) == "green"


def test_discounted_future_equals_its_definition() -> None:
    rng = np.random.default_rng(1)
    x, ends, offsets, gamma = rng.random(12), rng.random(3), np.array([0, 5, 6, 12]), 0.9
    found = discounted_future(x, ends, offsets, gamma)
    for episode in range(3):
        for t in range(offsets[episode], offsets[episode + 1]):
            later = x[t : offsets[episode + 1]]
            total = (gamma ** np.arange(len(later))) @ later + gamma ** len(later) * ends[episode] / (1 - gamma)
            assert found[t] == pytest.approx(total)


def _health(data: Dataset) -> dict:
    w = np.ones(data.rows)
    return weight_health(w, np.zeros(len(w), int), ["all"]) | {"audit": audit(data, w, 0.99)}
