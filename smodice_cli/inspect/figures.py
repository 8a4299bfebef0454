"""The pictures of the weights, and the page of them: histogram, Lorenz curve, state maps, logit, time, training."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from smodice_cli.data import Dataset
from smodice_cli.envs import registry, rendering
from smodice_cli.errors import UsageError, nearest
from smodice_cli.inspect import other_figures, output, weights
from smodice_cli.inspect.others import sample_rows
from smodice_cli.inspect.subject import Subject
from smodice_cli.inspect.terminal import percent
from smodice_cli.inspect.theme import LIGHT, Panel, Theme, band, heat_map, legend, pixels, png_bytes, render, style
from smodice_cli.inspect.views import ALIKE, Wish, usable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HALF, FULL, HEIGHT = 5.4, 10.8, 3.7  # inches
DECADES_SHOWN = 3  # of density that a state map resolves
FINE_BINS = 48
POINTS = 20_000  # that a scatter shows
EXPERT_MARKS = 50  # on top of it
FRAMES = 4  # of a trajectory
DRIFT = ("effective_share", "largest_share", "mean_ratio", "held_out")  # figures of the log that come first
CLIP_TICKS = (1, 3, 10, 30, 100, 300, 1000)


def panels(subject: Subject, view: dict[str, Any], wish: Wish) -> list[Panel]:
    """Every picture that this artifact allows."""
    if subject.kind != "weights":
        return other_figures.panels(subject, view, wish)
    if "lorenz" not in view:
        return []
    w = usable(subject.artifact.arrays["w"])
    chosen = weights.chosen_rows(subject.dataset) if subject.dataset else None
    grouped = weights.groups(np.asarray(subject.artifact.arrays["source"]), subject.labels, chosen)
    found = [histogram_panel(weights.histogram(w, grouped, FINE_BINS)), lorenz_panel(view)]
    if subject.dataset:
        seen = weights.plane(subject.dataset, wish.dims)
        cells = weights.state_map(subject.dataset, w, seen)
        alike = weights.on_rows_alike(w, np.asarray(subject.artifact.arrays["t"]), subject.artifact.header.config)
        maps = {"as cloned": w} if alike is None else {"as cloned": w, f"{ALIKE}, as in the paper": alike}
        found += [density_panel(cells), weight_map_panel(subject.dataset, seen, maps), along_panel(view["along"])]
    found.append(logit_panel(w, np.asarray(subject.artifact.arrays["reward"])))
    number = wish.trajectory if wish.trajectory is not None else _heaviest(subject, w)
    found.append(trajectory_panel(number, weights.along_time(subject.artifact.arrays, number, subject.dataset)))
    if wish.frames and subject.dataset:
        found.append(frames_panel(number, w, subject.dataset))
    if view.get("curves"):
        ordered = {name: view["curves"][name] for name in (*DRIFT, *view["curves"]) if name in view["curves"]}
        found.append(other_figures.curves_panel(ordered, "The health of the weights over training"))
    found.append(what_if_panel(view["what_if"]))
    return found


def pick(shown: list[Panel], names: str) -> list[Panel]:
    """The panels of these names, in this order."""
    known = {panel.key: panel for panel in shown}
    asked = [name.strip() for name in names.split(",")]
    for name in asked:
        if name not in known:
            raise UsageError(f"--panels: there is no '{name}' here", nearest(name, list(known)))
    return [known[name] for name in asked]


def _heaviest(subject: Subject, w: np.ndarray) -> int:
    episode = np.asarray(subject.artifact.arrays["episode"])
    return int(np.argmax(np.bincount(episode, w) / np.maximum(np.bincount(episode), 1)))


def save_png(path: Path, shown: list[Panel], view: dict[str, Any]) -> Path:
    """All panels on one page, two in a row, one that is left over across the page."""
    head = Panel("head", "", "", lambda figure, theme: _heading(figure, theme, view), wide=True)
    rows: list[list[Panel]] = [[head]]
    for panel in shown:
        if panel.wide or len(rows[-1]) == 2 or rows[-1][0].wide:
            rows.append([panel])
        else:
            rows[-1].append(panel)
    strips = []
    for row in rows:
        tall = (1.5 if view["kind"] == "weights" else 0.85) if row[0] is head else HEIGHT
        width = FULL if len(row) == 1 else HALF
        strips.append(np.concatenate([_pixels(panel, LIGHT, width, tall) for panel in row], axis=1))
    return output.write(path, png_bytes(np.concatenate(strips), Software=output.MARK))


def _pixels(panel: Panel, theme: Theme, width: float, height: float) -> np.ndarray:
    figure = render(panel, theme, width, height)
    if panel.title:
        figure.suptitle(panel.title, x=0.012, ha="left", fontsize=11.5, weight="bold", color=theme.ink)
    return pixels(figure)


def _heading(figure: Any, theme: Theme, view: dict[str, Any]) -> None:
    place = "/".join(Path(view["path"]).parts[-3:])
    figure.text(0.012, 0.74, place, fontsize=15, weight="bold", color=theme.ink)
    line = f"{view['kind']} artifact of smodice {view['stage']}, seed {view['seed']}, digest {view['digest'][:12]}"
    if view["kind"] == "weights":
        line = f"{_settings(view['config'])}   ·   seed {view['seed']}   ·   digest {view['digest'][:12]}"
        first, *more = summary(view)
        for height, text in zip((0.27, 0.04), (f"{view['verdict']['level'].upper()} · {first}", *more), strict=False):
            figure.text(0.012, height, text, fontsize=10.5, color=theme.ink)
    figure.text(0.012, 0.50, line, fontsize=10, color=theme.muted)


def _settings(config: dict[str, Any]) -> str:
    names = ("estimator", "f", "gamma", "alpha", "cap", "n_step", "steps")
    return "  ".join(f"{name} {config[name]}" for name in names if name in config)


def summary(view: dict[str, Any]) -> list[str]:
    """The card in a line, and what the labels say in another."""
    health = view["health"]
    parts = [
        f"effective sample {percent(health['effective_share'])} of {health['rows']:,} rows",
        f"largest row {percent(health['largest_share'])}",
    ]
    if health["pareto_k"] is not None:
        parts.append(f"Pareto k {health['pareto_k']:.2f}")
    lines = [" · ".join(parts)]
    if "auroc" in view.get("expert", {}):
        expert = view["expert"]
        share = f"{percent(expert['share'])} of the weight on {percent(expert['base_rate'])} of the rows"
        lines.append(f"{expert['name']}: {share}, AUROC {expert['auroc']:.3f} (labels never reach training)")
    return lines


# --- single panels ---------------------------------------------------------------------------------------------------


def histogram_panel(found: dict[str, Any]) -> Panel:
    def draw(figure: Any, theme: Theme) -> None:
        axes = style(figure.subplots(), theme, "log10 weight", "share of the group's rows")
        edges = np.array(found["log10_edges"])
        step = edges[1] - edges[0]
        for index, (name, entry) in enumerate(found["groups"].items()):
            colour = theme.series[index % len(theme.series)]
            total = max(sum(entry["counts"]) + entry["zero"] + entry["below"], 1)
            axes.stairs(np.array(entry["counts"]) / total, edges, color=colour, lw=1.8, label=name)
            axes.stairs(np.array(entry["counts"]) / total, edges, color=colour, alpha=0.18, fill=True)
            nothing = (entry["zero"] + entry["below"]) / total
            if nothing > 0.005:
                place = edges[0] - (3 + 1.4 * index) * step
                axes.bar(place, nothing, 1.2 * step, color=colour)
                text = f"{percent(nothing)} at or near 0"
                axes.annotate(text, (place, nothing), color=theme.ink, fontsize=8, ha="left", va="bottom")
        axes.axvline(0, color=theme.muted, lw=0.9, ls=(0, (2, 2)))
        axes.set_ylim(bottom=0)
        legend(axes, theme, loc="best")

    caption = "How the weights spread over orders of magnitude; the dotted line is the mean, 1."
    return Panel("histogram", "Weights by group", caption, draw)


def lorenz_panel(view: dict[str, Any]) -> Panel:
    found, health = view["lorenz"], view["health"]

    def draw(figure: Any, theme: Theme) -> None:
        axes = style(figure.subplots(), theme, "lightest share of the rows", "share of all weight")
        axes.plot([0, 1], [0, 1], color=theme.muted, lw=1, ls=(0, (2, 2)))
        axes.plot(found["rows"], found["weight"], color=theme.series[0], lw=2.2)
        axes.fill_between(found["rows"], found["weight"], color=theme.series[0], alpha=0.15, lw=0)
        text = f"Gini {found['gini']:.2f}\nheaviest 1 % hold {percent(health['top_1_percent_share'])}"
        axes.text(0.05, 0.93, text, transform=axes.transAxes, va="top", color=theme.ink, fontsize=9)
        axes.set(xlim=(0, 1), ylim=(0, 1.01))

    return Panel("lorenz", "Lorenz curve", "Equal weights lie on the dotted line.", draw)


def density_panel(cells: dict[str, Any]) -> Panel:
    shown = [("offline", "offline data"), ("weighted", "weighted: what is cloned"), ("expert", "expert states")]
    shown = [(key, title) for key, title in shown if cells[key] is not None]

    def draw(figure: Any, theme: Theme) -> None:
        from matplotlib.colors import LogNorm

        figure.set_layout_engine("compressed")  # axes of equal scale leave room that a plain layout does not see
        top = max(float(cells[key].max()) for key, _ in shown)
        norm = LogNorm(top / 10**DECADES_SHOWN, top)
        axes = np.atleast_1d(figure.subplots(1, len(shown), sharex=True, sharey=True))
        for one, (key, title) in zip(axes, shown, strict=True):
            style(one, theme, cells["names"][0], cells["names"][1] if one is axes[0] else "", title, grid=False)
            image = _cells(one, cells, np.where(cells[key] > 0, cells[key], np.nan), theme, norm)
        _colour_bar(figure, image, axes, theme, "share per cell")

    caption = "Where the data are, where the weights put them, and where the expert is, on one colour scale."
    return Panel("density", "State map", caption, draw, wide=True)


def weight_map_panel(dataset: Dataset, seen: weights.Plane, shown: dict[str, np.ndarray]) -> Panel:
    rows = sample_rows(dataset, POINTS)
    points = seen.project(dataset["observations"][rows])
    expert = weights.expert_points(dataset, seen)
    marks = None if expert is None else expert[:: -(-len(expert) // EXPERT_MARKS)]

    def draw(figure: Any, theme: Theme) -> None:
        from matplotlib.colors import Normalize

        figure.set_layout_engine("compressed")
        axes = np.atleast_1d(figure.subplots(1, len(shown), sharex=True, sharey=True))
        for one, (title, w) in zip(axes, shown.items(), strict=True):
            style(one, theme, seen.names[0], seen.names[1] if one is axes[0] else "", title, grid=False)
            order = np.argsort(w[rows], kind="stable")  # the heaviest on top
            norm = Normalize(0, float(np.quantile(w[w > 0], 0.998)))
            image = one.scatter(*points[order].T, c=w[rows][order], s=7, lw=0, cmap=heat_map(theme), norm=norm)
            _colour_bar(figure, image, one, theme, "weight")
            if marks is not None:
                one.scatter(*marks.T, s=14, marker="x", lw=0.8, color=theme.series[1], label="expert states")
            if seen.dims and 0.4 < np.divide(*np.ptp(points, axis=0)) < 2.5:
                one.set_aspect("equal")
        if marks is not None:
            legend(axes[0], theme, loc="best")

    caption = "A sample of the data, coloured by weight, the heaviest on top: the paper's picture of the weights."
    return Panel("weight-map", "Weight by place", caption, draw, wide=len(shown) > 1)


def _cells(axes: Axes, cells: dict[str, Any], values: np.ndarray, theme: Theme, norm: Any) -> Any:
    x, y = cells["edges"]
    shown = np.ma.masked_invalid(values.T)
    if cells["names"][0].startswith("s[") and 0.4 < (x[-1] - x[0]) / (y[-1] - y[0]) < 2.5:
        axes.set_aspect("equal")
    return axes.pcolormesh(x, y, shown, cmap=heat_map(theme), norm=norm, rasterized=True, linewidth=0)


def _colour_bar(figure: Any, image: Any, axes: Any, theme: Theme, label: str) -> None:
    bar = figure.colorbar(image, ax=axes, shrink=0.85, pad=0.02, aspect=22)
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=8, length=0, colors=theme.muted)
    bar.ax.minorticks_off()
    bar.set_label(label, color=theme.muted, fontsize=8.5)


def along_panel(found: dict[str, Any]) -> Panel:
    def draw(figure: Any, theme: Theme) -> None:
        axes = style(figure.subplots(), theme, "step in the trajectory", "weight")
        for index, (name, line) in enumerate(found.items()):
            band(axes, "t", line, theme.series[index % len(theme.series)], name)
        axes.set_ylim(bottom=0)
        legend(axes, theme, loc="best")

    return Panel("along", "Weight along the trajectory", "Mean and middle half of the weights by time step.", draw)


def logit_panel(w: np.ndarray, reward: np.ndarray) -> Panel:
    positive = w > 0
    every = max(1, int(positive.sum()) // 200_000)
    x, y = reward[positive][::every].astype(np.float64), np.log10(w[positive][::every])
    y_low = max(y.min(), y.max() - weights.DECADES)
    x_low, x_high = np.quantile(x, (0.0005, 0.9995))
    edges = [np.linspace(x_low, x_high + 1e-6, 61), np.linspace(y_low, y.max() + 1e-6, 61)]
    counts = np.histogram2d(x, y, edges)[0]

    def draw(figure: Any, theme: Theme) -> None:
        from matplotlib.colors import LogNorm

        axes = style(figure.subplots(), theme, "R(s), the discriminator's logit", "log10 weight", grid=False)
        shown = np.ma.masked_equal(counts.T, 0)
        norm = LogNorm(1, max(counts.max(), 2))
        image = axes.pcolormesh(*edges, shown, cmap=heat_map(theme), norm=norm, rasterized=True)
        _colour_bar(figure, image, axes, theme, "rows")

    caption = "Rows by reward and weight: weight far from large R is what V carries along the trajectories."
    return Panel("logit", "Weight against reward", caption, draw)


def trajectory_panel(number: int, found: dict[str, list[float]]) -> Panel:
    names = [("weight", "weight"), ("R", "R"), ("V", "V"), ("residual", "residual")]

    def draw(figure: Any, theme: Theme) -> None:
        axes = figure.subplots(2, 2, sharex=True)
        for index, (one, (name, label)) in enumerate(zip(axes.flat, names, strict=True)):
            style(one, theme, "step" if index > 1 else "", "", label)
            one.plot(found["t"], found[name], color=theme.series[index], lw=1.6)
            if name == "weight":
                one.fill_between(found["t"], found[name], color=theme.series[index], alpha=0.15, lw=0)
                one.set_ylim(bottom=0)

    caption = "One trajectory from start to end: its weight, reward R(s), value V(s) and residual R + gamma V' - V."
    return Panel("trajectory", f"Trajectory {number} along time", caption, draw)


def frames_panel(number: int, w: np.ndarray, dataset: Dataset) -> Panel:
    rows = slice(*dataset.offsets[number : number + 2])
    steps = weights.peaks(w[rows], FRAMES)
    width = registry.spec(dataset.env).obs_dim  # without the mark of the absorbing state
    images = rendering.pictures_of(dataset.env, dataset["observations"][rows][steps, :width])

    def draw(figure: Any, theme: Theme) -> None:
        axes = figure.subplots(1, FRAMES)
        for one in axes:
            one.set_axis_off()
        for one, step, image in zip(axes, steps, images, strict=False):
            one.imshow(image[::2, ::2])
            title = f"step {step}, weight {w[rows][step]:.3g}"
            one.set_title(title, color=theme.ink, fontsize=9.5, loc="left")

    caption = "The states in which the weight along the trajectory peaks."
    return Panel("frames", f"Trajectory {number} where its weight peaks", caption, draw, wide=True)


def what_if_panel(found: dict[str, Any]) -> Panel:
    def draw(figure: Any, theme: Theme) -> None:
        left, right = figure.subplots(1, 2, sharey=True)
        style(left, theme, "clipped at (x mean)", "effective sample, %")
        style(right, theme, "temperature T of w^(1/T)")
        if found["clip"]:
            x, y = ([entry[name] for entry in found["clip"]] for name in ("cap", "effective_share"))
            left.semilogx(x, 100 * np.array(y), "o-", color=theme.series[0], ms=4.5, lw=1.8)
        x, y = ([entry[name] for entry in found["temperature"]] for name in ("temperature", "effective_share"))
        right.semilogx(x, 100 * np.array(y), "o-", color=theme.series[1], ms=4.5, lw=1.8)
        right.set_xticks([0.5, 1, 2, 5, 10], ["0.5", "1", "2", "5", "10"])
        right.minorticks_off()
        left.set_xticks(CLIP_TICKS, [f"{tick:g}" for tick in CLIP_TICKS])
        left.minorticks_off()
        left.set_xlim(0.8, 1.25 * max([entry["cap"] for entry in found["clip"]], default=10.0))
        left.set_ylim(0, None)

    caption = "What clipping or flattening the weights would do to the effective sample size, without training again."
    return Panel("what-if", "What if", caption, draw)
