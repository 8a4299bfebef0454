"""What the weights look like, in numbers (numpy only)."""

from __future__ import annotations

from typing import Any

import numpy as np

from smodice_cli.data import Dataset

MIN_EFFECTIVE_SHARE = 0.05
MAX_ROW_SHARE = 0.001
MAX_MEAN_ERROR = 0.05
FEATURES = 64  # random Fourier features on which the Bellman flow is checked
FEATURE_ROWS = 200_000
QUANTILES = (0.01, 0.1, 0.5, 0.9, 0.99)


def weight_health(w: np.ndarray, source: np.ndarray, labels: list[str]) -> dict[str, Any]:
    """Size, effective sample size (sum w)^2 / sum w^2, concentration, zeros, quantiles and the mean per source."""
    w = np.asarray(w, np.float64)
    total = w.sum()
    ess = float(total**2 / np.square(w).sum())
    by_source = {}
    for index, label in enumerate(labels):
        mine = source == index
        if mine.any():
            by_source[label] = {
                "rows": int(mine.sum()),
                "mean": float(w[mine].mean()),
                "share": float(w[mine].sum() / total),
            }
    return {
        "rows": len(w),
        "effective_sample_size": ess,
        "effective_share": ess / len(w),
        "largest_share": float(w.max() / total),
        "zero_share": float((w == 0).mean()),
        "mean": float(w.mean()),
        "quantiles": {str(q): float(np.quantile(w, q)) for q in QUANTILES},
        "by_source": by_source,
    }


def flow_residual(dataset: Dataset, w: np.ndarray, gamma: float) -> float:
    """How far w d^O is from an occupancy, on random features phi of the state (0 is exact, 1 is no flow at all).

    | (1-gamma) E_mu0[phi(s)] + rho E_dO[w (gamma phi(s') - phi(s))] | / | rho E_dO[w phi(s)] |: the Bellman flow
    (Eq. 11) tested by features, where rho is the mass that is not yet in a terminal state (1 if none is); on every
    k-th row where the data set is large.
    """
    rng = np.random.default_rng(0)
    width = dataset["observations"].shape[1]
    frequencies, phases = rng.normal(size=(width, FEATURES)) / np.sqrt(width), rng.uniform(0, 2 * np.pi, FEATURES)

    def phi(states: np.ndarray) -> np.ndarray:
        return np.cos((states - dataset["mean"]) / dataset["std"] @ frequencies + phases)

    rows = slice(None, None, max(1, dataset.rows // FEATURE_ROWS))
    weight = w[rows] / w[rows].sum()
    goes_on = dataset["terminals"][rows] == 0
    rho = (1 - gamma) / (1 - gamma * (weight @ goes_on))
    here, there = phi(dataset["observations"][rows]), phi(dataset["next_observations"][rows]) * goes_on[:, None]
    start = phi(dataset.initial_observations()).mean(axis=0)
    error = (1 - gamma) * start + rho * (weight @ (gamma * there - here))
    return float(np.linalg.norm(error) / np.linalg.norm(rho * (weight @ here)))


def health_warnings(health: dict[str, Any]) -> list[str]:
    """What is wrong with the weights, in plain words, with what to try."""
    found = []
    if health["effective_share"] < MIN_EFFECTIVE_SHARE:
        found.append(
            f"the weights rest on few rows (effective sample size {100 * health['effective_share']:.2f} %): "
            "try a larger alpha or a smaller cap"
        )
    if health["largest_share"] > MAX_ROW_SHARE:
        found.append(
            f"one row holds {100 * health['largest_share']:.2f} % of all weight: try a smaller cap or a larger alpha"
        )
    if abs(health.get("raw_mean", 1.0) - 1) > MAX_MEAN_ERROR:
        found.append(
            f"the mean ratio is {health['raw_mean']:.3f} instead of 1: the dual has not converged, try more steps"
        )
    return found
