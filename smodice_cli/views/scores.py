"""eval: scores, returns and lengths of the episodes, how they ended, and the return over training."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from smodice_cli import envs
from smodice_cli.lazy import np
from smodice_cli.statistics import half_width_95
from smodice_cli.views import Block, Facts, Opened, Panel, Records, Request, View, figures, records
from smodice_cli.views.plots import ACROSS, from_zero, mark_levels, small_multiples, spread
from smodice_cli.views.render.terminal import columns, percent, short
from smodice_cli.views.render.theme import band

LATE, WITHIN = 2 / 3, 0.1  # a run is steady if the last third of its curve stays within 10 % of its end ...
POINT = 1.0  # ... or of one point of the score, where it ends at nothing
Line = dict[str, list[float]]  # steps, mean, low, high
Levels = Mapping[str, float]  # what a score is compared with, by name


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
        found: Facts = {"env": payload["env"], "score": payload["score"]}
        found |= {"episodes": figures, "per_episode": episodes}
        if orders := orders_of(episodes):
            found["orders"] = orders
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
        lines |= {f"completed: {task}": percent(share) for task, share in facts["score"].get("completed", {}).items()}
        if facts.get("steady"):
            lines["last third of training within 10 % of its end"] = facts["steady"]
        quartiles = "  ".join(f"{value:.4g}" for value in facts["episodes"]["quantiles"].values())
        found: list[Block] = [figures("scores", lines, {"quartiles": quartiles, **facts["episodes"]})]
        if "orders" in facts:
            found.insert(0, records("tasks completed, in their order", columns("orders"), facts["orders"]))
        return found

    def panels(self, opened: Opened, facts: Facts, request: Request) -> list[Panel]:
        if "episodes" not in facts:
            return []
        levels = reference_returns(facts["env"], facts["score"])
        caption = "Return of every episode and how it ended; dotted: their mean, and what it is compared with."
        found = [Panel("episodes", "Episodes", caption, draw_episodes, (facts["per_episode"], levels))]
        if "curve" in facts:
            line = {"this policy": of_scores(facts["curve"])["mean_return"]}
            how = "the band is the deviation over the episodes"
            found.append(
                returns_panel(
                    "Return over training", "return", line, {"this policy": levels}, how, {"this policy": "C0"}
                )
            )
        return found

    def tables(self, opened: Opened, facts: Facts) -> dict[str, Records]:
        if "episodes" not in facts:
            return {".csv": _compared(facts["score"])}
        orders = {number: {"completed": one["order"]} for one in facts.get("orders", ()) for number in one["numbers"]}
        rows = enumerate(facts["per_episode"])
        found = {".csv": [{"episode": index, **episode, **orders.get(index, {})} for index, episode in rows]}
        return found | ({".curve.csv": facts["curve"]} if "curve" in facts else {})


def orders_of(episodes: Sequence[Mapping[str, Any]]) -> Records:
    """The orders in which tasks were completed, most frequent first, each with its episodes; none of a single score."""
    found: dict[str, list[int]] = {}
    for number, episode in enumerate(episodes):
        if "completed" in episode:
            steps = {task: step for task, step in episode["completed"].items() if step is not None}
            found.setdefault(" > ".join(sorted(steps, key=steps.__getitem__)) or "none", []).append(number)
    ordered = sorted(found.items(), key=lambda item: -len(item[1]))
    return [
        {"order": order, "count": len(numbers), "share": len(numbers) / len(episodes), "numbers": numbers}
        for order, numbers in ordered
    ]


def _compared(score: Facts) -> Records:
    """The policy's error on recordings, and that of the others."""
    own = {"policy": {"error": score["action_error"], "interval_95": score["interval_95"]}}
    return [
        {"who": name, "error": found["error"], "low": found["interval_95"][0], "high": found["interval_95"][1]}
        for name, found in (own | score["beside"]).items()
    ]


def _beside(score: Facts) -> list[Block]:
    return [records("error of the actions", columns("compared"), _compared(score))]


def reference_returns(env: str, score: Facts) -> dict[str, float]:
    """The returns that count as random and as expert: the data's own expert where it is known, else the reference."""
    if env not in envs.ENVIRONMENTS:
        return {}
    found = envs.ENVIRONMENTS[env]
    own = 100 * score["mean_return"] / score["of_expert"] if score.get("of_expert") else None
    return {"random": found.random_score, "expert": found.expert_score if own is None else own}


def reference_scores(env: str, score: Facts) -> dict[str, float]:
    """The same as normalized scores."""
    return {name: envs.ENVIRONMENTS[env].normalized(value) for name, value in reference_returns(env, score).items()}


def draw_episodes(figure: Any, episodes: Records, levels: Levels) -> None:
    """Every episode's return, lowest first, coloured by how it ended."""
    axes = figure.add_subplot(xlabel="episode, in order of return", ylabel="return")
    ordered = sorted(episodes, key=lambda episode: episode["return"])
    for how in sorted({episode["ended"] for episode in ordered}):
        at = [i for i, episode in enumerate(ordered) if episode["ended"] == how]
        heights = [ordered[i]["return"] for i in at]
        axes.plot(at, heights, "o", ms=4.5, label=f"{how} ({len(at)})")
    returns = [episode["return"] for episode in ordered]
    mark_levels(axes, {"mean": float(np.mean(returns)), **levels})
    from_zero(axes, [*returns, *levels.values()])
    figure.legend(loc="outside lower center", ncols=3)


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
    """Several seeds' figures by step as one line: mean and its 95 % interval at the steps that all of them have."""
    common = sorted(set.intersection(*(set(line) for line in lines))) if lines else []
    if len(common) < 2:
        return None
    table = np.array([[line[step] for step in common] for line in lines])
    middle, half = table.mean(axis=0), half_width_95(table)
    sides = {"mean": middle, "low": middle - half, "high": middle + half}
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


def returns_panel(
    title: str,
    label: str,
    lines: Mapping[str, Line],
    levels: Mapping[str, Levels],
    how: str,
    colours: Mapping[str, str],
    wide: bool = False,
) -> Panel:
    """The return over training; `how` says what the bands are, `levels` what each line is compared with."""
    caption = f"Scored at snapshots of the policy; {how}." + " Grey: the other methods." * (len(lines) > 1)
    rows = -(-len(lines) // ACROSS)
    return Panel("returns", title, caption, draw_returns, (label, lines, levels, colours), wide or len(lines) > 1, rows)


def draw_returns(
    figure: Any, label: str, lines: Mapping[str, Line], levels: Mapping[str, Levels], colours: Mapping[str, str]
) -> None:
    """One panel with its band for each method, all on one scale."""
    labels = {"xlabel": "gradient step of the policy", "ylabel": label}
    heights = [height for line in lines.values() for height in line["mean"]]
    heights += [height for found in levels.values() for height in found.values()]
    for axes, name in small_multiples(figure, lines, "steps", **labels):
        mark_levels(axes, levels.get(name, {}))
        band(axes, "steps", lines[name], colours[name], name, "o-")
        axes.set_xlim(left=0)
        from_zero(axes, heights)
        axes.locator_params(axis="x", nbins=4)
        axes.ticklabel_format(useOffset=False)
