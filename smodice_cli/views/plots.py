"""What several kinds of artifacts share: spreads, histograms by group, profiles along trajectories, training curves."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from smodice_cli.lazy import np
from smodice_cli.views.opened import Curves
from smodice_cli.views.render import terminal
from smodice_cli.views.render.theme import Panel, band, filled_steps

SAMPLE = 50_000  # rows on which networks are looked at
BINS = 24
MOST_CURVES = 6  # in one picture
ACROSS = 3  # small multiples side by side
CALM = 0.1  # of the largest figure: what an axis spans at least


def sample_rows(rows: int, count: int = SAMPLE) -> np.ndarray:
    """Evenly spaced rows, all where there are few."""
    return np.unique(np.linspace(0, rows - 1, min(count, rows)).astype(np.int64))


def spread(values: np.ndarray) -> dict[str, float]:
    """Mean, deviation, smallest and largest."""
    values = np.asarray(values, np.float64)
    return {name: float(getattr(values, name)()) for name in ("mean", "std", "min", "max")}


def shares(groups: Mapping[str, np.ndarray], edges: np.ndarray) -> dict[str, Any]:
    """The shares of each group's values between common edges."""
    found = {name: (np.histogram(values, edges)[0] / len(values)).tolist() for name, values in groups.items()}
    return {"edges": edges.tolist(), "shares": found}


def shares_of_most(groups: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """The same on edges that hold nearly all values; the few beyond count at the ends."""
    low, high = np.quantile(np.concatenate(list(groups.values())), (0.001, 0.999))
    edges = np.linspace(low, max(high, low + 1e-9), BINS + 1)
    return shares({name: np.clip(values, edges[0], edges[-1]) for name, values in groups.items()}, edges)


def shares_lines(title: str, histogram: dict[str, Any]) -> list[str]:
    """A histogram for a terminal."""
    groups = {}
    for name, found in histogram["shares"].items():
        pairs = np.add.reduceat(found, range(0, len(found), 2)).tolist()  # of bins: a dozen lines at most
        groups[name] = terminal.between(histogram["edges"][::2], pairs)
    return terminal.histogram(f"{title}, share of each group", groups)


def draw_shares(figure: Any, label: str, histogram: dict[str, Any]) -> None:
    """Filled steps, one colour for each group."""
    axes = figure.add_subplot(xlabel=label, ylabel="share")
    for index, (name, found) in enumerate(histogram["shares"].items()):
        filled_steps(axes, found, histogram["edges"], f"C{index}", name)
    axes.set_ylim(bottom=0)
    axes.legend()


def profile(values: np.ndarray, t: np.ndarray, bins: int = 40) -> dict[str, list[float]]:
    """Mean and middle half of the values against the time in the episode."""
    last = int(np.quantile(t, 0.95)) + 1  # few episodes reach beyond
    edges = np.unique(np.linspace(0, last, min(bins, last) + 1).astype(int))
    found: dict[str, list[float]] = {"t": [], "mean": [], "low": [], "high": []}
    order = np.argsort(t, kind="stable")
    cuts = np.searchsorted(t[order], edges)
    for a, b, start, stop in zip(cuts[:-1], cuts[1:], edges[:-1], edges[1:], strict=True):
        if b > a:
            part = values[order[a:b]]
            low, high = np.quantile(part, (0.25, 0.75))
            for name, value in zip(found, ((start + stop - 1) / 2, part.mean(), low, high), strict=True):
                found[name].append(float(value))
    return found


def draw_profiles(figure: Any, label: str, profiles: Mapping[str, Any], from_zero: bool = False) -> None:
    """Profiles of several groups, one colour each."""
    axes = figure.add_subplot(xlabel="step in the trajectory", ylabel=label)
    for index, (name, line) in enumerate(profiles.items()):
        band(axes, "t", line, f"C{index}", name)
    if from_zero:
        axes.set_ylim(bottom=0)
    axes.legend()


def from_zero(axes: Any, heights: Sequence[float], room: float = 0.06) -> None:
    """An axis of scores begins at 0, or below where some are negative, and ends above the largest."""
    low, high = min(0.0, *heights), max(0.0, *heights)
    margin = room * ((high - low) or 1.0)
    axes.set_ylim(low - margin, high + 2 * margin)


def calm(axes: Any, heights: Sequence[float], line: Mapping[str, list[float]] | None = None) -> None:
    """An axis that does not magnify noise: it spans at least a tenth of what it shows.

    Of a `line` with its band it shows no more than three times the span of the mean: two seeds have a wide interval.
    """
    low, high = min(heights), max(heights)
    span = max(high - low, CALM * max(abs(low), abs(high)))
    if line:
        low, high = max(min(line["low"]), low - span), min(max(line["high"]), high + span)
    if (missing := span - (high - low)) > 0:
        low, high = low - missing / 2, high + missing / 2
    if high > low:
        axes.set_ylim(low - 0.05 * (high - low), high + 0.05 * (high - low))


def mark_levels(axes: Any, levels: Mapping[str, float]) -> None:
    """Dotted lines across, each with its names at the right end."""
    named: dict[float, list[str]] = {}
    for text, height in levels.items():
        same = [other for other in named if math.isclose(other, height, rel_tol=1e-3, abs_tol=1e-9)]
        named.setdefault(same[0] if same else height, []).append(text)
    place = {"xycoords": axes.get_yaxis_transform(), "textcoords": "offset points", "ha": "right", "fontsize": 7.5}
    for height, texts in named.items():
        axes.axhline(height, ls="--", lw=0.9, zorder=1)
        axes.annotate(", ".join(texts), (0.995, height), (0, 3), zorder=4, **place)  # above a curve on the line


def small_multiples(figure: Any, lines: Mapping[str, Any], across: str, **labels: str) -> Iterator[tuple[Any, str]]:
    """Axes of one size and scale for each line, with the means of the others in grey; gives axes and name.

    Nine methods in one picture hide each other; side by side each can be read, and compared with all.
    """
    columns = min(ACROSS, len(lines)) or 1
    rows = -(-len(lines) // columns)
    places = np.atleast_1d(figure.subplots(rows, columns, sharex=True, sharey=True)).reshape(-1)
    for one in places[len(lines) :]:
        one.set_visible(False)
    for index, (axes, name) in enumerate(zip(places, lines, strict=False)):
        below, first = index + columns >= len(lines), index % columns == 0
        axes.set(title=name, xlabel=labels["xlabel"] if below else "", ylabel=labels["ylabel"] if first else "")
        axes.tick_params(labelbottom=below)
        for other in lines:
            if other != name:
                axes.plot(lines[other][across], lines[other]["mean"], color="0.6", lw=0.8, alpha=0.6)
        yield axes, name


def curves_panel(curves: Curves, title: str) -> Panel:
    """The figures of a training log that have a course, the first few of them."""
    names = [name for name in curves if len(curves[name]["values"]) > 1][:MOST_CURVES]
    shown = {name: curves[name] for name in names}
    rows, caption = -(-len(shown) // ACROSS) or 1, "What the stage logged while it trained."
    return Panel("curves", title, caption, draw_curves, (shown,), wide=True, rows=rows)


def draw_curves(figure: Any, curves: Curves) -> None:
    """Every figure on axes of its own, side by side: their names are long."""
    columns = min(ACROSS, len(curves)) or 1
    axes = np.atleast_1d(figure.subplots(-(-len(curves) // columns) or 1, columns, sharex=True)).reshape(-1)
    for one in axes[len(curves) :]:
        one.set_visible(False)
    for index, (one, name) in enumerate(zip(axes, curves, strict=False)):
        one.set(xlabel="step" if index >= len(curves) - columns else "", title=name.replace("_", " "))
        steps, values = curves[name]["steps"], curves[name]["values"]
        one.plot(steps, values, "o-" if len(steps) < 25 else "-", color=f"C{index}", lw=1.4, ms=3)
        calm(one, values)
        one.locator_params(nbins=4)
        one.ticklabel_format(useOffset=False)
