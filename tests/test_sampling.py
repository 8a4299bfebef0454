"""Sampling in proportion to weights, against what the table must mean."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from smodice_cli.algos.sampling import alias_table, row_sampler
from smodice_cli.errors import InputError


@given(
    seed=st.integers(0, 10_000),
    rows=st.integers(1, 60),
    power=st.sampled_from([0.0, 0.5, 1.0, 8.0]),
    empty=st.sampled_from([0.0, 0.5]),
)
@settings(max_examples=200, deadline=None)
def test_the_table_gives_every_row_its_probability(seed: int, rows: int, power: float, empty: float) -> None:
    rng = np.random.default_rng(seed)
    p = rng.exponential(size=rows) ** power
    p[rng.random(rows) < empty] = 0
    p[rng.integers(rows)] = 1
    keep, other = alias_table(p)
    assert keep.min() >= 0
    assert keep.max() <= 1
    found = keep.astype(np.float64)
    for i in range(rows):
        found[other[i]] += 1 - float(keep[i])
    assert found / rows == pytest.approx(p / p.sum(), abs=1e-7)
    assert (keep[p == 0] == 0).all()
    assert (p[other] > 0)[keep < 1].all()


def test_probabilities_that_are_equal_but_for_rounding_have_a_table() -> None:
    for value in np.linspace(0.1, 0.9, 50):
        p = np.full(1000, value)
        p[0] = np.nextafter(value, 0)
        assert alias_table(p)[0] == pytest.approx(np.ones(1000))


def test_draws_are_as_frequent_as_they_should_be_and_the_same_for_a_seed() -> None:
    p = np.array([0.0, 1.0, 2.0, 5.0, 0.0, 8.0])
    draws = [row_sampler(p, torch.Generator().manual_seed(3))(160_000) for _ in range(2)]
    assert (draws[0] == draws[1]).all()
    counts = np.bincount(draws[0].numpy(), minlength=6)
    assert not counts[[0, 4]].any()
    assert counts / 160_000 == pytest.approx(p / 16, abs=0.005)


def test_equal_probabilities_need_no_table_and_none_at_all_is_refused() -> None:
    draws = row_sampler(np.full(5, 0.2), torch.Generator().manual_seed(0))(20_000)
    assert np.bincount(draws.numpy()) / 20_000 == pytest.approx(np.full(5, 0.2), abs=0.02)
    with pytest.raises(InputError, match="no rows are left"):
        row_sampler(np.zeros(3), torch.Generator())
