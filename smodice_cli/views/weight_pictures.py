"""The pictures of the weights: histogram, Lorenz curve, places, reward, along time, frames, what if."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from smodice_cli import envs
from smodice_cli.data import Dataset
from smodice_cli.envs import rendering
from smodice_cli.lazy import np
from smodice_cli.views import choice
from smodice_cli.views.opened import Facts, Opened, Request, plane_of
from smodice_cli.views.places import choose_plane, density_panel, draw_weight_map, state_map
from smodice_cli.views.plots import curves_panel, draw_profiles
from smodice_cli.views.render.terminal import percent
from smodice_cli.views.render.theme import Panel, colour_bar, filled_steps
from smodice_cli.views.value import ON_SEGMENTS

FRAMES = 4  # of a trajectory
MOST_ROWS = 200_000  # that a map of rewards counts
CLIP_TICKS = (1, 3, 10, 30, 100, 300, 1000)
TEMPERATURE_TICKS = (0.5, 1, 2, 5, 10)
FINE_BINS = 48
FIRST_CURVES = (*ON_SEGMENTS.values(), "held_out")  # figures of the log that come first
CAPTIONS = {  # how to read them
    "histogram": "How the weights spread over orders of magnitude; the dotted line is the mean, 1.",
    "lorenz": "Equal weights lie on the dotted line.",
    "weight-map": "A sample of the data, coloured by weight, the heaviest on top: the paper's picture of the weights.",
    "along": "Mean and middle half of the weights by time step.",
    "logit": "Rows by reward and weight: weight far from large R is what V carries along the trajectories.",
    "trajectory": "One trajectory from start to end: "
    "its weight, reward R(s), value V(s) and residual R + gamma V' - V.",
    "frames": "The states in which the weight along the trajectory peaks.",
    "what-if": "What clipping or flattening the weights would do to the effective sample size, without training again.",
}


def panels(opened: Opened, facts: Facts, request: Request) -> list[Panel]:
    """Every picture that the weights allow."""
    if "lorenz" not in facts:
        return []
    arrays, dataset = opened.artifact.arrays, opened.dataset
    w = choice.usable(arrays["w"])
    named = choice.groups(np.asarray(arrays["source"]), opened.labels, choice.chosen_rows(dataset))
    top = facts["health"]["top_1_percent_share"]
    found = [
        _panel("histogram", "Weights by group", draw_histogram, choice.histogram(w, named, FINE_BINS)),
        _panel("lorenz", "Lorenz curve", draw_lorenz, facts["lorenz"], top),
    ]
    if dataset:
        plane = choose_plane(dataset, plane_of(request.dims, dataset))
        equal = choice.on_equal_rows(w, np.asarray(arrays["t"]), opened.artifact.header.config)
        maps = {"as cloned": w}
        if equal is not None and not choice.look_alike(w, equal):
            maps[f"{choice.EQUAL}, as in the paper"] = equal
        found += [
            density_panel(plane, state_map(dataset, w, plane)),
            _panel("weight-map", "Weight by place", draw_weight_map, dataset, plane, maps, wide=len(maps) > 1),
            _panel("along", "Weight along the trajectory", draw_profiles, "weight", facts["along"], True),
        ]
    found.append(_panel("logit", "Weight against reward", draw_logit, w, np.asarray(arrays["reward"])))
    number = choice.heaviest(arrays["episode"], w) if request.trajectory is None else request.trajectory
    title, along = f"Trajectory {number}", choice.along_time(arrays, number, dataset)
    found.append(_panel("trajectory", f"{title} along time", draw_trajectory, along))
    if request.frames and dataset:
        shown = frames(dataset, number, w)
        found.append(_panel("frames", f"{title} where its weight peaks", draw_frames, *shown, wide=True))
    found.append(_panel("what-if", "What if", draw_what_if, facts["what_if"]))
    if curves := facts.get("curves"):
        ordered = {name: curves[name] for name in (*FIRST_CURVES, *curves) if name in curves}
        found.append(curves_panel(ordered, "V over training"))
    return found


def _panel(key: str, title: str, draw: Callable[..., None], *shown: Any, wide: bool = False) -> Panel:
    return Panel(key, title, CAPTIONS[key], draw, shown, wide)


def draw_histogram(figure: Any, found: dict[str, Any]) -> None:
    """The weights by group, those at or near 0 apart."""
    axes = figure.add_subplot(xlabel="log10 weight", ylabel="share of the group's rows")
    edges = np.array(found["log10_edges"])
    step = edges[1] - edges[0]
    for index, (name, entry) in enumerate(found["groups"].items()):
        total = max(sum(entry["counts"]) + entry["zero"] + entry["below"], 1)
        filled_steps(axes, np.array(entry["counts"]) / total, edges, f"C{index}", name)
        nothing = (entry["zero"] + entry["below"]) / total
        if nothing > 0.005:
            place = edges[0] - (3 + 1.4 * index) * step
            axes.bar(place, nothing, 1.2 * step, color=f"C{index}")
            text = f"{percent(nothing)} at or near 0"
            axes.annotate(text, (place, nothing), fontsize=8, ha="left", va="bottom")
    axes.axvline(0, lw=0.9, ls="--")
    axes.set_ylim(bottom=0)
    axes.legend()


def draw_lorenz(figure: Any, found: dict[str, Any], top_share: float) -> None:
    """How unequal the weights are."""
    axes = figure.add_subplot(xlabel="lightest share of the rows", ylabel="share of all weight")
    axes.axline((0, 0), (1, 1), ls="--")
    axes.plot(found["rows"], found["weight"], lw=2.2)
    axes.fill_between(found["rows"], found["weight"], alpha=0.15, lw=0)
    text = f"Gini {found['gini']:.2f}\nheaviest 1 % hold {percent(top_share)}"
    axes.text(0.05, 0.93, text, transform=axes.transAxes, va="top", fontsize=9)
    axes.set(xlim=(0, 1), ylim=(0, 1.01))


def draw_logit(figure: Any, w: np.ndarray, reward: np.ndarray) -> None:
    """How many rows have this reward and this weight."""
    from matplotlib.colors import LogNorm

    positive = w > 0
    every = max(1, int(positive.sum()) // MOST_ROWS)
    x, y = reward[positive][::every].astype(np.float64), np.log10(w[positive][::every])
    low, high = np.quantile(x, (0.0005, 0.9995))
    edges = [np.linspace(low, high + 1e-6, 61), np.linspace(max(y.min(), y.max() - choice.DECADES), y.max() + 1e-6, 61)]
    counts = np.histogram2d(x, y, edges)[0]
    axes = figure.add_subplot(xlabel="R(s), the discriminator's logit", ylabel="log10 weight")
    axes.grid(False)
    norm = LogNorm(1, max(counts.max(), 2))
    image = axes.pcolormesh(*edges, np.ma.masked_equal(counts.T, 0), norm=norm, rasterized=True)
    colour_bar(figure, image, axes, "rows")


def draw_trajectory(figure: Any, found: dict[str, list[float]]) -> None:
    """One trajectory's weight, reward, value and residual."""
    axes = figure.subplots(2, 2, sharex=True)
    for index, (one, name) in enumerate(zip(axes.flat, ("weight", "R", "V", "residual"), strict=True)):
        one.set(xlabel="step" if index > 1 else "", title=name)
        one.plot(found["t"], found[name], color=f"C{index}", lw=1.6)
        if name == "weight":
            one.fill_between(found["t"], found[name], alpha=0.15, lw=0)
            one.set_ylim(bottom=0)


def frames(dataset: Dataset, number: int, w: np.ndarray) -> tuple[list[np.ndarray], list[str]]:
    """The states of a trajectory in which its weight peaks, as the simulator draws them, with their titles."""
    rows = slice(*dataset.offsets[number : number + 2])
    steps = choice.peaks(w[rows], FRAMES)
    width = envs.find_in_file(dataset.env).obs_dim  # without the mark of the absorbing state
    images = rendering.pictures_of(dataset.env, dataset["observations"][rows][steps, :width])
    return images, [f"step {step}, weight {w[rows][step]:.3g}" for step in steps]


def draw_frames(figure: Any, images: list[np.ndarray], titles: list[str]) -> None:
    axes = figure.subplots(1, FRAMES)
    for one in axes:
        one.set_axis_off()
    for one, title, image in zip(axes, titles, images, strict=False):
        one.imshow(image[::2, ::2])
        one.set_title(title)


def draw_what_if(figure: Any, found: dict[str, Any]) -> None:
    """The effective sample under clipped and under flattened weights."""
    left, right = figure.subplots(1, 2, sharey=True)
    left.set(xlabel="clipped at (x mean)", ylabel="effective sample, %")
    right.set(xlabel="temperature T of w^(1/T)")
    changes = ((left, "clip", "cap", CLIP_TICKS), (right, "temperature", "temperature", TEMPERATURE_TICKS))
    for index, (axes, kind, across, ticks) in enumerate(changes):
        if found[kind]:
            x, y = ([entry[name] for entry in found[kind]] for name in (across, "effective_share"))
            axes.semilogx(x, 100 * np.array(y), "o-", color=f"C{index}", ms=4.5, lw=1.8)
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
    left.set_xlim(0.8, 1.25 * max([entry["cap"] for entry in found["clip"]], default=10.0))
    left.set_ylim(0, None)
