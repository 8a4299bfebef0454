"""Methods over all tasks and seeds: interquartile mean, performance profile, chance of improvement, with intervals.

As rliable defines them (Agarwal et al., NeurIPS 2021); a task is a dataset, and every seed's normalized score counts
alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import permutations
from typing import Any

from smodice_cli.lazy import np
from smodice_cli.statistics import improvement, interquartile_mean, middle_95, profile_of, resampled
from smodice_cli.views.opened import Facts, Records
from smodice_cli.views.plots import ACROSS, small_multiples
from smodice_cli.views.render.theme import Panel, band
from smodice_cli.views.runs import Run

DRAWS = 10_000  # of the bootstrap; rliable takes 50,000, which moves the interval by less than its rounding here
PROFILE_DRAWS = 2_000  # as in rliable
THRESHOLDS = 101
FEWEST = 2  # scores below which there is nothing to aggregate

Scores = dict[str, dict[str, "np.ndarray"]]  # method -> task -> one score for each seed


def names(runs: Sequence[Run]) -> list[str]:
    """What to call each run's method: as short as still tells them apart, on every task."""
    writers: tuple[Callable[[Run], str], ...] = (
        lambda run: run.own or run.algo,
        lambda run: run.method,
        lambda run: f"{run.name}, {run.method}",
    )
    found: list[str] = []
    for write in writers:
        found = [write(run) for run in runs]
        meanings = {(name, run.method) for name, run in zip(found, runs, strict=True)}
        places = {(name, run.task) for name, run in zip(found, runs, strict=True)}
        if len(meanings) == len(set(found)) and len(places) == len(runs):
            break
    return found


def colours(runs: Sequence[Run]) -> dict[str, str]:
    """The colour of each method, the same in every picture."""
    return {name: f"C{index % 9}" for index, name in enumerate(dict.fromkeys(names(runs)))}


def scores_of(runs: Sequence[Run]) -> Scores:
    """Each method's normalized scores, by task; those of recordings have none."""
    found: Scores = {}
    for run, name in zip(runs, names(runs), strict=True):
        scores = [score["normalized"] for seed in run.seeds if (score := seed.score) and "normalized" in score]
        if scores:
            found.setdefault(name, {})[run.task] = np.array(scores)
    return found


def aggregate(runs: Sequence[Run]) -> Facts | None:
    """The methods, best first, and the chance that each beats each other; None where there are too few scores."""
    scores = scores_of(runs)
    everything = [one for tasks in scores.values() for one in tasks.values()]
    if sum(map(len, everything)) < FEWEST:
        return None
    reached = np.concatenate(everything)
    thresholds = np.linspace(min(0.0, reached.min()), max(100.0, reached.max()), THRESHOLDS)
    methods = [{"method": name, **_method(list(tasks.values()), thresholds)} for name, tasks in scores.items()]
    pairs = permutations(scores, 2)
    return {
        "tasks": len({task for tasks in scores.values() for task in tasks}),
        "methods": sorted(methods, key=lambda found: -found["iqm"]),
        "improvement": [pair for first, second in pairs if (pair := _pair(first, second, scores))],
    }


def _method(tasks: list[np.ndarray], thresholds: np.ndarray) -> Facts:
    rng = np.random.default_rng(0)
    scores = np.concatenate(tasks)
    draws = np.concatenate(resampled(tasks, DRAWS, rng), axis=1)
    low, high = middle_95(profile_of(draws[:PROFILE_DRAWS], thresholds))
    return {
        "tasks": len(tasks),
        "scores": len(scores),
        "iqm": float(interquartile_mean(scores)),
        "iqm_95": middle_95(interquartile_mean(draws)).tolist(),
        "mean": float(scores.mean()),
        "mean_95": middle_95(draws.mean(axis=1)).tolist(),
        "profile": {
            "threshold": thresholds.tolist(),
            "mean": profile_of(scores, thresholds).tolist(),
            "low": low.tolist(),
            "high": high.tolist(),
        },
    }


def _pair(first: str, second: str, scores: Scores) -> Facts | None:
    """The chance that the first method beats the second on the tasks that both have."""
    common = [task for task in scores[first] if task in scores[second]]
    if not common:
        return None
    rng = np.random.default_rng(0)
    both = [[scores[name][task] for task in common] for name in (first, second)]
    draws = improvement(*(resampled(tasks, PROFILE_DRAWS, rng) for tasks in both))
    chance = float(improvement(*both))
    low_high = middle_95(draws).tolist()
    return {"method": first, "over": second, "tasks": len(common), "chance": chance, "interval_95": low_high}


# --- for people ------------------------------------------------------------------------------------------------------


def rows(found: Facts) -> Records:
    """A line for each method, with the chance that the best one beats it."""
    best = found["methods"][0]["method"]
    beaten = {pair["over"]: pair for pair in found["improvement"] if pair["method"] == best}
    lines: Records = []
    for method in found["methods"]:
        pair = beaten.get(method["method"])
        chance = [100 * value for value in (pair["chance"], *pair["interval_95"])] if pair else []
        told = "{:.0f} % ({:.0f} to {:.0f})".format(*chance) if chance else ""
        lines.append({**method, "of": found["tasks"], "beaten": told})
    return lines


def chances(found: Facts) -> dict[str, list[Any]]:
    """The chance that the method of a row beats that of a column, in per cent."""
    listed = [method["method"] for method in found["methods"]]
    known = {(pair["method"], pair["over"]): pair["chance"] for pair in found["improvement"]}
    cells = [["" if (pair := known.get((a, b))) is None else f"{100 * pair:.0f}" for b in listed] for a in listed]
    return {"columns": ["beats", *listed], "rows": [[a, *row] for a, row in zip(listed, cells, strict=True)]}


def tables(found: Facts) -> dict[str, Records]:
    """The same as records for a spreadsheet, by how the names of their files end."""
    flat = [
        {key: method[key] for key in ("method", "tasks", "scores", "iqm", "mean")}
        | {f"{key}_{end}": method[f"{key}_95"][i] for key in ("iqm", "mean") for i, end in enumerate(("low", "high"))}
        for method in found["methods"]
    ]
    pairs = [
        {key: pair[key] for key in ("method", "over", "tasks", "chance")}
        | {"low": pair["interval_95"][0], "high": pair["interval_95"][1]}
        for pair in found["improvement"]
    ]
    profiles = []
    for method in found["methods"]:
        points = zip(*method["profile"].values(), strict=True)
        profiles += [
            {"method": method["method"], **dict(zip(("threshold", "share", "low", "high"), point, strict=True))}
            for point in points
        ]
    return {".methods.csv": flat, ".improvement.csv": pairs, ".profiles.csv": profiles}


def panels(found: Facts, colours: Mapping[str, str]) -> list[Panel]:
    """The interquartile means, and the performance profiles."""
    methods = found["methods"]
    middle = "Interquartile mean over tasks and seeds with its 95 % interval (stratified bootstrap)."
    share = "Share of all tasks and seeds with a score above each threshold, with its 95 % interval; grey: the others."
    lines = {method["method"]: method["profile"] for method in methods}
    return [
        Panel("iqm", "Interquartile mean", middle, draw_means, (methods, colours), wide=True),
        Panel(
            "profiles", "Performance profiles", share, draw_profiles, (lines, colours), True, -(-len(lines) // ACROSS)
        ),
    ]


def draw_means(figure: Any, methods: Records, colours: Mapping[str, str]) -> None:
    """A point and its interval for each method, best above."""
    axes = figure.add_subplot(xlabel="normalized score (0: random, 100: expert)")
    for index, method in enumerate(methods):
        (low, high), colour = method["iqm_95"], colours[method["method"]]
        axes.plot([low, high], [index, index], color=colour, lw=6, alpha=0.35, solid_capstyle="butt")
        axes.plot(method["iqm"], index, "o", color=colour, ms=7)
    axes.set_yticks(range(len(methods)), [method["method"] for method in methods])
    axes.set_ylim(len(methods) - 0.4, -0.6)
    axes.axvline(100, ls="--")
    axes.set_xlim(min(0.0, *(method["iqm_95"][0] for method in methods)) - 2, None)
    axes.grid(axis="y", visible=False)


def draw_profiles(figure: Any, lines: dict[str, Any], colours: Mapping[str, str]) -> None:
    """One panel for each method."""
    labels = {"xlabel": "score above", "ylabel": "share"}
    for axes, name in small_multiples(figure, lines, "threshold", **labels):
        band(axes, "threshold", lines[name], colours[name], name)
        axes.set_ylim(-0.03, 1.03)
