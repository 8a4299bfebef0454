"""eval: scores, returns and lengths of the episodes, how they ended, and the return over training."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from smodice_cli.lazy import np
from smodice_cli.views import Block, Facts, Opened, Panel, Records, Request, View, figures, records
from smodice_cli.views.plots import spread
from smodice_cli.views.render.terminal import columns, short
from smodice_cli.views.render.theme import band

LATE, WITHIN = 2 / 3, 0.1  # a run is steady if the last third of its curve stays within 10 % of its end ...
POINT = 1.0  # ... or of one point of the score, where it ends at nothing
FEW = 3  # lines whose legend finds room among them
Line = dict[str, list[float]]  # steps, mean, low, high


class ScoresView(View):
    """How good a policy is."""

    def figures(self, opened: Opened, request: Request) -> Facts:
        payload = opened.artifact.payload()
        if "per_episode" not in payload:  # of recordings
            return {"score": payload["score"]}
        episodes, curve = payload["per_episode"], payload.get("curve") or []
        returns = np.array([episode["return"] for episode in episodes])
        figures = {
            "count": len(episodes),
            "return": spread(returns),
            "length": spread(np.array([episode["length"] for episode in episodes])),
            "ended": dict(Counter(episode["ended"] for episode in episodes)),
            "quantiles": {str(q): float(np.quantile(returns, q)) for q in (0.0, 0.25, 0.5, 0.75, 1.0)},
        }
        found: Facts = {"score": payload["score"], "episodes": figures, "per_episode": episodes}
        if lines := of_scores(curve):
            curves = {name: {"steps": line["steps"], "values": line["mean"]} for name, line in lines.items()}
            deviation = worst_deviation(lines["normalized"])
            found |= {"curve": curve, "curves": curves, "steady": steady(deviation), "worst_deviation": deviation}
        return found

    def blocks(self, facts: Facts) -> list[Block]:
        if "episodes" not in facts:
            return [figures("scores", columns("recorded"), facts["score"]), *_beside(facts["score"])]
        ended = facts["episodes"]["ended"].items()
        lines = columns("scores") | {f"ended: {name}": f"{count:,}" for name, count in ended}
        figured = {name: value for name, value in facts["score"].items() if isinstance(value, float)}
        lines |= {name.replace("_", " "): short(value) for name, value in figured.items()}
        if facts.get("steady"):
            lines["last third of training within 10 % of its end"] = facts["steady"]
        quartiles = "  ".join(f"{value:.4g}" for value in facts["episodes"]["quantiles"].values())
        return [figures("scores", lines, {"quartiles": quartiles, **facts["episodes"]})]

    def panels(self, opened: Opened, facts: Facts, request: Request) -> list[Panel]:
        if "episodes" not in facts:
            return []
        caption = "Return of every episode and how it ended; the dotted line is the mean."
        found = [Panel("episodes", "Episodes", caption, draw_episodes, (facts["per_episode"],))]
        if "curve" in facts:
            line = {"this policy": of_scores(facts["curve"])["mean_return"]}
            how = "the band is the deviation over the episodes"
            found.append(returns_panel("Return over training", "return", line, how))
        return found

    def tables(self, opened: Opened, facts: Facts) -> dict[str, Records]:
        if "episodes" not in facts:
            return {".csv": _compared(facts["score"])}
        found = {".csv": [{"episode": index, **episode} for index, episode in enumerate(facts["per_episode"])]}
        return found | ({".curve.csv": facts["curve"]} if "curve" in facts else {})


def _compared(score: Facts) -> Records:
    """The policy's error on recordings, and that of the others."""
    own = {"policy": {"error": score["action_error"], "interval_95": score["interval_95"]}}
    return [
        {"who": name, "error": found["error"], "low": found["interval_95"][0], "high": found["interval_95"][1]}
        for name, found in (own | score["beside"]).items()
    ]


def _beside(score: Facts) -> list[Block]:
    return [records("error of the actions", columns("compared"), _compared(score))]


def draw_episodes(figure: Any, episodes: Records) -> None:
    """Every episode's return, lowest first, coloured by how it ended."""
    axes = figure.add_subplot(xlabel="episode, in order of return", ylabel="return")
    ordered = sorted(episodes, key=lambda episode: episode["return"])
    for how in sorted({episode["ended"] for episode in ordered}):
        at = [i for i, episode in enumerate(ordered) if episode["ended"] == how]
        heights = [ordered[i]["return"] for i in at]
        axes.plot(at, heights, "o", ms=4.5, label=f"{how} ({len(at)})")
    axes.axhline(float(np.mean([e["return"] for e in ordered])), ls="--")
    axes.legend()


# --- the return over training ----------------------------------------------------------------------------------------


def of_scores(curve: Sequence[Mapping[str, float]]) -> dict[str, Line]:
    """The `curve` of a score file as lines; the band of the return is the deviation over a snapshot's episodes."""
    found: dict[str, Line] = {}
    for name, deviation in (("mean_return", "std_return"), ("normalized", ""), ("success_rate", "")):
        points = [point for point in curve if name in point]
        if points:
            middle = np.array([point[name] for point in points])
            half = np.array([point.get(deviation, 0.0) for point in points])
            sides = {"mean": middle, "low": middle - half, "high": middle + half}
            found[name] = {"steps": [float(point["step"]) for point in points]}
            found[name] |= {side: values.tolist() for side, values in sides.items()}
    return found


def over_seeds(lines: Sequence[Mapping[float, float]]) -> Line | None:
    """Several seeds' figures by step as one line: mean, lowest and highest at the steps that all of them have."""
    common = sorted(set.intersection(*(set(line) for line in lines))) if lines else []
    if len(common) < 2:
        return None
    table = np.array([[line[step] for step in common] for line in lines])
    sides = {"mean": table.mean(axis=0), "low": table.min(axis=0), "high": table.max(axis=0)}
    return {"steps": common, **{side: values.tolist() for side, values in sides.items()}}


def worst_deviation(line: Line) -> float | None:
    """How far the last third of a curve of scores strays from its end, as a share of it; None where it is too short."""
    steps, values = np.array(line["steps"]), np.array(line["mean"])
    late = np.abs(values[steps >= LATE * steps[-1]] - values[-1])
    return float(late.max() / max(abs(values[-1]), POINT)) if len(late) > 1 else None


def steady(deviation: float | None) -> str:
    """The verdict in words."""
    if deviation is None:
        return ""
    return f"{'yes' if deviation <= WITHIN else 'no'} ({100 * deviation:.1f} %)"


def returns_panel(title: str, label: str, lines: Mapping[str, Line], how: str, wide: bool = False) -> Panel:
    """The return over training; `how` says what the bands are."""
    return Panel("returns", title, f"Scored at snapshots of the policy; {how}.", draw_returns, (label, lines), wide)


def draw_returns(figure: Any, label: str, lines: Mapping[str, Line]) -> None:
    """One line with its band for each method."""
    axes = figure.add_subplot(xlabel="gradient step of the policy", ylabel=label)
    for index, (name, line) in enumerate(lines.items()):
        band(axes, "steps", line, f"C{index}", name, "o-")
    axes.set_xlim(left=0)
    axes.ticklabel_format(useOffset=False)
    if len(lines) > FEW:
        figure.legend(loc="outside lower center", ncols=2)
    elif len(lines) > 1:
        axes.legend()
