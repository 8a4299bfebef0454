"""What the weights look like, in numbers (numpy only), and whether that is healthy, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from smodice_cli.data import Dataset
from smodice_cli.inspect.pareto import tail_shape

# (yellow, red): where a figure deserves a look, and where training on the weights is in doubt.
EFFECTIVE_SHARE = (0.05, 0.01)
ROW_SHARE = (0.001, 0.01)
ROW_MULTIPLE = (30.0, 300.0)  # ... and this many times the mean, so that a small data set is not blamed for its size
TAIL_SHAPE = (0.7, 1.0)
MEAN_ERROR = (0.05, 0.5)
FLOW_RESIDUAL = (3.0, 10.0)
FEATURES = 64  # random Fourier features on which the Bellman flow is checked
FEATURE_ROWS = 200_000
QUANTILES = (0.01, 0.1, 0.5, 0.9, 0.99)
LEVELS = ("green", "yellow", "red")


class Finding(NamedTuple):
    """One thing to know about the weights: how bad, what, and what to try."""

    level: str
    text: str
    remedy: str


def effective_size(w: np.ndarray) -> float:
    """Kish's effective sample size (sum w)^2 / sum w^2; 0 where there is no weight at all."""
    w = np.asarray(w, np.float64)
    squares = float(np.square(w).sum())
    return float(w.sum() ** 2 / squares) if squares else 0.0


def top_share(w: np.ndarray, share: float = 0.01) -> float:
    """The share of all weight that the heaviest `share` of the rows (at least one) holds."""
    count = max(1, round(share * len(w)))
    return float(np.partition(w, len(w) - count)[len(w) - count :].sum() / w.sum())


def weight_health(w: np.ndarray, source: np.ndarray, labels: list[str]) -> dict[str, Any]:
    """Size, effective sample size (sum w)^2 / sum w^2, concentration, tail, zeros, quantiles, and mean per source.

    Non-finite rows are counted and then left out, so that a broken file still gets its card.
    """
    whole = np.asarray(w, np.float64)
    finite = np.isfinite(whole)
    w, source = (whole, source) if finite.all() else (whole[finite], source[finite])
    total = float(w.sum())
    health: dict[str, Any] = {"rows": len(whole), "non_finite": int((~finite).sum())}
    if not len(w) or total <= 0:
        return (
            health
            | {"effective_sample_size": 0.0, "effective_share": 0.0, "zero_share": 1.0, "mean": 0.0}
            | {
                "largest_share": 0.0,
                "top_1_percent_share": 0.0,
                "negative": int((w < 0).sum()),
                "pareto_k": None,
                "quantiles": {},
                "by_source": {},
            }
        )
    rows = np.bincount(source, minlength=len(labels))
    sums = np.bincount(source, weights=w, minlength=len(labels))
    ess = effective_size(w)
    return health | {
        "effective_sample_size": ess,
        "effective_share": ess / len(w),
        "largest_share": float(w.max() / total),
        "top_1_percent_share": top_share(w),
        "zero_share": float((w == 0).mean()),
        "negative": int((w < 0).sum()),
        "mean": float(w.mean()),
        "pareto_k": tail_shape(w),
        "quantiles": {str(q): float(v) for q, v in zip(QUANTILES, np.quantile(w, QUANTILES), strict=True)},
        "by_source": {
            label: {"rows": int(n), "mean": float(s / n), "share": float(s / total)}
            for label, n, s in zip(labels, rows, sums, strict=False)
            if n
        },
    }


def flow_residual(dataset: Dataset, w: np.ndarray, gamma: float) -> float:
    """How far w d^O is from an occupancy, on random features phi of the state: 0 is exact, 1 as much as flows in.

    | (1-gamma) E_mu0[phi(s)] + rho E_dO[w (gamma phi(s') - phi(s))] | / | (1-gamma) E_mu0[phi(s)] |: the Bellman flow
    (Eq. 11) tested by features, where rho is the mass that is not yet in a terminal state (1 if none is); on every
    k-th of the rows with any weight where there are many. d^O counts rows alike.
    """
    rng = np.random.default_rng(0)
    width = dataset["observations"].shape[1]
    frequencies, phases = rng.normal(size=(width, FEATURES)) / np.sqrt(width), rng.uniform(0, 2 * np.pi, FEATURES)

    def phi(states: np.ndarray) -> np.ndarray:
        return np.cos((states - dataset["mean"]) / dataset["std"] @ frequencies + phases)

    rows = np.flatnonzero(w)
    rows = rows[:: max(1, len(rows) // FEATURE_ROWS)]
    weight = w[rows] / w[rows].sum()
    goes_on = dataset["terminals"][rows] == 0
    rho = (1 - gamma) / (1 - gamma * (weight @ goes_on))
    here, there = phi(dataset["observations"][rows]), phi(dataset["next_observations"][rows]) * goes_on[:, None]
    inflow = (1 - gamma) * phi(dataset.initial_observations()).mean(axis=0)
    error = inflow + rho * (weight @ (gamma * there - here))
    return float(np.linalg.norm(error) / np.linalg.norm(inflow))


# --- the verdict ------------------------------------------------------------------------------------------------------


def _level(value: float, limits: tuple[float, float], above: bool = True) -> str:
    yellow, red = limits
    beyond = (value > yellow, value > red) if above else (value < yellow, value < red)
    return LEVELS[sum(beyond)]


def findings(health: dict[str, Any], config: Mapping[str, Any] | None = None) -> list[Finding]:
    """Everything worth a word about the weights, worst first; `config` are the settings they were made with."""
    found: list[Finding] = []
    made = config or {}
    softer = f"raise alpha (--set value.alpha={max(1.0, 2 * made.get('alpha', 0.0)):g}) and run train-value again"

    def add(level: str, text: str, remedy: str) -> None:
        if level != "green":
            found.append(Finding(level, text, remedy))

    if health.get("non_finite"):
        again = "run train-value again with a smaller learning rate (--set value.lr=1e-4)"
        add("red", f"{health['non_finite']:,} rows have weights that are no numbers", again)
    if health.get("negative"):
        add("red", f"{health['negative']:,} rows have negative weights", "run train-value again: a ratio is at least 0")
    if health["mean"] == 0:
        add("red", "no row has any weight", softer)
        return found
    share = health["effective_share"]
    few = f"the weights rest on few rows: an effective sample of {health['effective_sample_size']:,.0f} of "
    add(_level(share, EFFECTIVE_SHARE, above=False), f"{few}{health['rows']:,} ({100 * share:.2g} %)", softer)
    largest, multiple = health["largest_share"], health["largest_share"] * health["rows"]
    worst = min(LEVELS.index(_level(largest, ROW_SHARE)), LEVELS.index(_level(multiple, ROW_MULTIPLE)))
    add(LEVELS[worst], f"one row holds {100 * largest:.2g} % of all weight", softer)
    k = health.get("pareto_k")
    if k is not None:
        heavy = "it has no finite mean" if k > 1 else "averages hang on few rows"
        add(_level(k, TAIL_SHAPE), f"the tail of the weights is heavy (Pareto k = {k:.2f}: {heavy})", softer)
    ends = made.get("terminal") == "zero"  # where mass ends, the mean is rightly below 1
    raw = 1.0 if ends else health.get("raw_mean", 1.0)
    more = f"train longer (--set value.steps={max(10_000, 2 * made.get('steps', 0))})"
    more += "" if made.get("normaliser") else " or switch the normaliser on (--set value.normaliser=true)"
    add(_level(abs(raw - 1), MEAN_ERROR), f"the mean ratio is {raw:.3f} instead of 1: V has not converged", more)
    flow = health.get("flow_residual", 0.0)
    text = f"the weighted data do not flow like a trajectory distribution (Bellman residual {flow:.2f})"
    add(_level(flow, FLOW_RESIDUAL), text, more)
    return sorted(found, key=lambda finding: -LEVELS.index(finding.level))


def verdict(found: list[Finding]) -> str:
    """green, yellow or red: the worst of the findings."""
    return found[0].level if found else "green"


def health_warnings(health: dict[str, Any], config: Mapping[str, Any] | None = None) -> list[str]:
    """What is wrong with the weights, in plain words, with what to try."""
    return [f"{finding.text}: {finding.remedy}" for finding in findings(health, config)]
