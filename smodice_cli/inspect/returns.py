"""The policy's return over its training: the curve of one score file, of several seeds, and whether it is steady."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from smodice_cli.inspect.theme import Panel, Theme, band, legend, style

LATE, WITHIN = 2 / 3, 0.1  # a run is steady if the last third of its curve stays within 10 % of its end ...
POINT = 1.0  # ... or of one point of the score, where it ends at nothing
FEW = 3  # lines whose legend finds room among them
Line = dict[str, list[float]]  # steps, mean, low, high


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


def returns_panel(key: str, title: str, label: str, lines: Mapping[str, Line], how: str) -> Panel:
    """One line with its band for each method."""

    def draw(figure: Any, theme: Theme) -> None:
        axes = style(figure.subplots(), theme, "gradient step of the policy", label)
        for index, (name, line) in enumerate(lines.items()):
            band(axes, "steps", line, theme.series[index % len(theme.series)], name, "o-")
        axes.set_xlim(left=0)
        axes.ticklabel_format(useOffset=False)
        if len(lines) > FEW:
            legend(figure, theme, loc="outside lower center", ncols=2)
        elif len(lines) > 1:
            legend(axes, theme, loc="best")

    return Panel(key, title, f"Scored at snapshots of the policy; {how}.", draw)
