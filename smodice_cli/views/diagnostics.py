"""What the weights look like, in numbers (numpy only), and whether that is healthy, in words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from smodice_cli.data import Dataset
from smodice_cli.lazy import np
from smodice_cli.statistics import effective_size
from smodice_cli.views.audit import GAP_COST, LEAST_COVER, LEAST_EVENNESS

# (yellow, red): where a figure deserves a look, and where training on the weights is in doubt. docs/stress.md has the
# runs behind those of the second opinion.
TRUST = (0.9, 0.2)  # of the second opinion, in the part of the episodes where it is worst
LIKENESS = (0.6, 0.4)  # of the best trajectories, in parts of the expert's own
OUTSIDE = (0.2, 0.8)  # of the expert's states
EFFECTIVE_ROWS = (500.0, 100.0)
EFFECTIVE_TRAJECTORIES = (2.0, 0.0)
LEAST_AUC = 0.7  # below it, weights that do not match are the discriminator's fault
ROW_SHARE = (0.01, 0.05)
ROW_MULTIPLE = (30.0, 300.0)  # ... and this many times the mean, so that a small data set is not blamed for its size
MEAN_ERROR = (0.05, 0.5)
FLOW_RESIDUAL = (3.0, math.inf)
FEATURES = 64  # random Fourier features on which the Bellman flow is checked
FEATURE_ROWS = 50_000
QUANTILES = (0.01, 0.1, 0.5, 0.9, 0.99)
GRID = 30  # candidates for the scale parameter, plus sqrt(n): Zhang and Stephens, section 2
PRIOR_WIDTH = 3.0  # their prior on it, in units of the lower quartile
PRIOR_COUNT, PRIOR_SHAPE = 10.0, 0.5  # PSIS: as if 10 more points had a shape of 1/2
LEAST_TAIL = 5  # points below which no shape can be fitted
LEVELS = ("green", "yellow", "red")
WORDS = {"green": "healthy", "yellow": "look closer", "red": "not fit to train on"}


class Finding(NamedTuple):
    """One thing to know about the weights: how bad, what, and what to try."""

    level: str
    text: str
    remedy: str


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
        zero = ("effective_sample_size", "effective_share", "largest_share", "top_1_percent_share", "mean")
        health |= dict.fromkeys(zero, 0.0) | {"zero_share": 1.0, "negative": int((w < 0).sum())}
        return health | {"pareto_k": None, "quantiles": {}, "by_source": {}}
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
    (Eq. 11) tested by features, where rho is the mass that is not yet in a terminal state (1 if none is). d^O counts
    rows alike.
    """
    rng = np.random.default_rng(0)
    width = dataset["observations"].shape[1]
    frequencies, phases = rng.normal(size=(width, FEATURES)) / np.sqrt(width), rng.uniform(0, 2 * np.pi, FEATURES)

    def phi(states: np.ndarray) -> np.ndarray:
        angles = (states - dataset["mean"]) / dataset["std"] @ frequencies
        angles += phases  # in place, as below: these are the largest arrays of train-value
        return np.cos(angles, out=angles)

    rows, weight = _some_episodes(w, dataset.offsets)
    goes_on = dataset["terminals"][rows] == 0
    rho = (1 - gamma) / (1 - gamma * (weight @ goes_on))
    there = phi(dataset["next_observations"][rows])
    there *= gamma * goes_on[:, None]
    there -= phi(dataset["observations"][rows])
    inflow = (1 - gamma) * phi(dataset.initial_observations()).mean(axis=0)
    error = inflow + rho * (weight @ there)
    return float(np.linalg.norm(error) / np.linalg.norm(inflow))


def _some_episodes(w: np.ndarray, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows with any weight, and their weights, which sum to 1; of many rows, those of episodes drawn by their weight.

    Whole ones: what flows out of one row of an episode flows into the next, and only together do they cancel out.
    """
    mass, lengths = np.add.reduceat(w, offsets[:-1], dtype=np.float64), np.diff(offsets)
    draws = int(FEATURE_ROWS * mass.sum() // (mass @ lengths))
    if np.count_nonzero(w) > FEATURE_ROWS and draws:
        places = (np.arange(draws) + 0.5) / draws * mass.sum()
        drawn = np.bincount(np.searchsorted(np.cumsum(mass), places), minlength=len(mass))
        w = w * np.repeat(drawn / np.maximum(mass, 1e-30), lengths)
    rows = np.flatnonzero(w)
    return rows, w[rows] / w[rows].sum()


def tail_length(rows: int) -> int:
    """How many of the largest weights count as the tail: min(n/5, 3 sqrt(n)), as in PSIS."""
    return math.ceil(min(0.2 * rows, 3.0 * math.sqrt(rows)))


def tail_shape(w: np.ndarray) -> float | None:
    """The shape k of the weights' upper tail, by a generalised Pareto fit; None where it is flat or has too few points.

    k < 0.5: the weights have a finite variance; 0.5 to 0.7: heavy but usable; above 0.7 averages under the weights are
    decided by few rows; above 1 the tail has no finite mean. (Vehtari, Simpson, Gelman, Yao, Gabry: Pareto smoothed
    importance sampling; the fit is Zhang and Stephens, Technometrics 2009.) ArviZ has it too, with far heavier
    dependencies than these twenty lines.
    """
    w = np.asarray(w, np.float64)
    count = tail_length(len(w))
    if count < LEAST_TAIL:
        return None
    top = np.partition(w, len(w) - count - 1)[len(w) - count - 1 :]
    excess = np.sort(top - top.min())
    excess = excess[excess > excess[-1] * 1e-12]
    return fit_shape(excess) if len(excess) >= LEAST_TAIL else None


def fit_shape(excess: np.ndarray, prior: bool = True) -> float:
    """The shape k of sorted positive excesses over a threshold: the posterior mean of Zhang and Stephens.

    The likelihood of (b, k), b = -k/scale, has its maximum over k at k(b) = mean log(1 - b x), so only b is averaged,
    over a grid that their prior spreads below 1/max(x).
    """
    n = len(excess)
    candidates = GRID + int(math.sqrt(n))
    quartile = excess[max(int(n / 4 + 0.5) - 1, 0)]
    position = np.arange(1, candidates + 1) - 0.5
    b = 1.0 / excess[-1] + (1.0 - np.sqrt(candidates / position)) / (PRIOR_WIDTH * quartile)
    b = b[b != 0]
    shape = np.log1p(-np.outer(b, excess)).mean(axis=1)
    log_likelihood = n * (np.log(-b / shape) - shape - 1.0)
    posterior = np.exp(log_likelihood - log_likelihood.max())
    k = float(np.log1p(-(b @ posterior / posterior.sum()) * excess).mean())
    return (n * k + PRIOR_COUNT * PRIOR_SHAPE) / (n + PRIOR_COUNT) if prior else k


# --- the verdict ------------------------------------------------------------------------------------------------------


def _level(value: float, limits: tuple[float, float], above: bool = True) -> str:
    yellow, red = limits
    beyond = (value > yellow, value > red) if above else (value < yellow, value < red)
    return LEVELS[sum(beyond)]


def findings(health: dict[str, Any], config: Mapping[str, Any] | None = None) -> list[Finding]:
    """Everything worth a word about the weights, worst first; `config` are the settings they were made with."""
    found: list[Finding] = []
    made = config or {}
    softer = f"raise alpha (--set value.alpha={2 * made.get('alpha', 0.15):g}) and train V again"

    def add(level: str, text: str, remedy: str) -> None:
        if level != "green":
            found.append(Finding(level, text, remedy))

    if health.get("non_finite"):
        again = "train V again with a smaller learning rate (--set value.lr=1e-4)"
        add("red", f"{health['non_finite']:,} rows have weights that are no numbers", again)
    if health.get("negative"):
        add("red", f"{health['negative']:,} rows have negative weights", "train V again: a ratio is at least 0")
    if health["mean"] == 0:
        add("red", "no row has any weight", softer)
        return found
    for finding in second_opinion(health, made, softer):
        add(*finding)
    rows = health["effective_sample_size"]
    few = f"the weights rest on few rows: an effective sample of {rows:,.0f} of {health['rows']:,}"
    enough = rows > health["rows"] / 10 or bool(found)  # one remedy at a time
    add("green" if enough else _level(rows, EFFECTIVE_ROWS, above=False), few, softer)
    largest, multiple = health["largest_share"], health["largest_share"] * health["rows"]
    worst = min(LEVELS.index(_level(largest, ROW_SHARE)), LEVELS.index(_level(multiple, ROW_MULTIPLE)))
    add(LEVELS[worst], f"one row holds {100 * largest:.2g} % of all weight", softer)
    ends = made.get("terminal") == "zero"  # where mass ends, the mean is rightly below 1
    raw = 1.0 if ends else health.get("raw_mean", 1.0)
    more = f"train longer (--set value.steps={max(10_000, 2 * made.get('steps', 0))})"
    more += "" if made.get("normaliser") else " or switch the normaliser on (--set value.normaliser=true)"
    add(_level(abs(raw - 1), MEAN_ERROR), f"the mean ratio is {raw:.3f} instead of 1: V has not converged", more)
    flow = health.get("flow_residual", 0.0)
    text = f"the weighted data do not flow like a trajectory distribution (Bellman residual {flow:.2f})"
    add(_level(flow, FLOW_RESIDUAL), text, more)
    return sorted(found, key=lambda finding: -LEVELS.index(finding.level))


def second_opinion(health: Mapping[str, Any], made: Mapping[str, Any], softer: str) -> list[Finding]:
    """What `audit` found: weights that miss the best trajectories, data or experts that do not fit together."""
    audit = health.get("audit", {})
    if "trust" not in audit:  # as in files of earlier versions
        return []
    longer = max(10_000, 2 * made.get("steps", 0))
    level, text, remedy = "red", "nothing is known of the weights' match with the expert", softer
    if worst := min(audit["parts"], key=lambda part: part["trust"], default=None):
        level = _level(worst["trust"], TRUST, above=False)
        causes = {
            "match": worst["match"],
            "gap": 1 - GAP_COST * (1 - min(worst["cover"] / LEAST_COVER, 1.0)),
            "few": min(audit["evenness"] / LEAST_EVENNESS, 1.0),
        }
        cause = min(causes, key=causes.__getitem__)
        text = f"the weights take {100 * worst['match']:.0f} % of what the best trajectories have of the expert"
        text += f" (from step {worst['from']} on, where they take least)"
        remedy = f"a smaller alpha (--set value.alpha={made.get('alpha', 0.15) / 2:g}), then train V again"
        if cause == "gap":
            share = f"{100 * worst['cover']:.0f} % of the weight that later steps have"
            text = f"there is a gap from step {worst['from']} on: those steps have {share}"
            remedy = f"train V longer (--set value.steps={longer}): it is V that closes gaps"
            if made.get("estimator") == "returns":
                remedy = "a V closes gaps, and these weights have none (--set value.estimator=dual)"
        elif cause == "few":
            text = (
                f"the weight lies unevenly on the rows of its trajectories (evenness {100 * audit['evenness']:.0f} %)"
            )
            remedy = softer
        elif (auc := health.get("auc", 1.0)) < LEAST_AUC:
            text += f"; the discriminator hardly knows the expert (AUC {auc:.2f})"
            remedy = "train the discriminator longer (--set disc.steps=4000)"
    likeness = audit["best_of_data"] / max(audit["expert"], 1e-9)
    alike = f"no trajectory of the data is much like the expert (the best reach {100 * likeness:.0f} % of its likeness)"
    beyond = f"{100 * audit['outside']:.0f} % of the expert's states lie outside the range of the data"
    effective = audit["effective_trajectories"]
    single = f"the weight rests on few trajectories (an effective number of {effective:.1f})"
    frame = "is the expert in another frame, unit or body? smodice inspect dataset.h5 shows both ranges"
    return [
        Finding(level, text, remedy),
        Finding(_level(likeness, LIKENESS, above=False), alike, "data that come closer to the expert"),
        Finding(_level(audit["outside"], OUTSIDE), beyond, frame),
        Finding(_level(effective, EFFECTIVE_TRAJECTORIES, above=False), single, "more data like the expert's"),
    ]


def verdict(found: list[Finding]) -> str:
    """green, yellow or red: the worst of the findings."""
    return found[0].level if found else "green"
