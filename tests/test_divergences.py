"""Conjugates and weights of every f, against numerical maximisation and automatic differentiation."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from smodice_cli.algos.divergences import DIVERGENCES

NAMES = list(DIVERGENCES)
slopes = st.floats(-6, 4)
caps = st.one_of(st.just(math.inf), st.floats(0.5, 20))


def f(name: str, x: float) -> float:
    """The divergences as a textbook has them."""
    entropy = (x * math.log(x) if x > 0 else 0.0) - x + 1
    square = (x - 1) ** 2 / 2
    return {"kl": entropy, "soft-chi2": entropy if x < 1 else square}.get(name, square)


def maximise(name: str, y: float, cap: float) -> tuple[float, float]:
    """max over x in its domain of x y - f(x), and where it is reached."""
    low = -50.0 if name == "chi2-untruncated" else 0.0
    high = min(cap, 100.0)  # beyond every maximiser for slopes up to 4
    found = minimize_scalar(
        lambda x: f(name, x) - x * y, bounds=(low, high), method="bounded", options={"xatol": 1e-11}
    )
    best = max([(-found.fun, found.x), (low * y - f(name, low), low), (high * y - f(name, high), high)])
    return float(best[0]), float(best[1])


@pytest.mark.parametrize("name", NAMES)
@given(y=slopes, cap=caps)
def test_the_conjugate_is_the_maximum_and_the_weight_its_place(name: str, y: float, cap: float) -> None:
    value, place = maximise(name, y, cap)
    slope = torch.tensor([y], dtype=torch.float64)
    assert float(DIVERGENCES[name].conjugate(slope, cap)) == pytest.approx(value, abs=1e-7, rel=1e-7)
    assert float(DIVERGENCES[name].weight(slope, cap)) == pytest.approx(place, abs=1e-4, rel=1e-4)


@pytest.mark.parametrize("name", NAMES)
@given(y=slopes, cap=caps)
def test_the_gradient_of_the_conjugate_is_the_weight(name: str, y: float, cap: float) -> None:
    slope = torch.tensor([y], dtype=torch.float64, requires_grad=True)
    DIVERGENCES[name].conjugate(slope, cap).sum().backward()
    assert slope.grad is not None
    torch.testing.assert_close(slope.grad, DIVERGENCES[name].weight(slope.detach(), cap))


@pytest.mark.parametrize("name", NAMES)
@given(x=st.floats(0.001, 50))
def test_f_is_what_the_textbook_says_and_its_slope_is_inverted(name: str, x: float) -> None:
    divergence, at = DIVERGENCES[name], {np: np.array([x]), torch: torch.tensor([x], dtype=torch.float64)}
    for package, value in at.items():
        assert float(divergence.f(package, value)[0]) == pytest.approx(f(name, x), abs=1e-9)
        back = divergence.inverse_slope(package, divergence.slope(package, value))
        assert float(back[0]) == pytest.approx(x, rel=1e-9)
    step = 1e-6 * x
    change = (divergence.slope(np, at[np] + step) - divergence.slope(np, at[np] - step)) / (2 * step)
    if abs(x - 1) > 1e-3:  # where soft-chi2 bends
        assert float(divergence.curvature(np, at[np])[0]) == pytest.approx(float(change[0]), rel=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_nan_far_out(name: str) -> None:
    far = torch.tensor([-1e15, -1e4, -100.0, 0.0, 80.0])
    for cap in (math.inf, 1000.0):
        weight, conjugate = DIVERGENCES[name].weight(far, cap), DIVERGENCES[name].conjugate(far, cap)
        assert not weight.isnan().any()
        assert not conjugate.isnan().any()
        if name != "chi2-untruncated":
            assert (weight >= 0).all()
            assert conjugate[0] == -float(f(name, 0.0)), "below the truncation the conjugate is constant: -f(0)"


def test_a_cap_makes_the_conjugate_linear_beyond_its_slope() -> None:
    y = torch.linspace(20, 1e6, 5, dtype=torch.float64)
    for name in NAMES:
        steps = np.diff(DIVERGENCES[name].conjugate(y, 7.0).numpy()) / np.diff(y.numpy())
        np.testing.assert_allclose(steps, 7.0)
