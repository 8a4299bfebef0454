"""Where in the state space: two coordinates to draw, maps of the data, of the weights and of the expert's states."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from smodice_cli import envs
from smodice_cli.data import Dataset
from smodice_cli.lazy import np
from smodice_cli.views.plots import sample_rows
from smodice_cli.views.render.theme import Panel, colour_bar

DECADES_SHOWN = 3  # of density that a state map resolves
POINTS = 20_000  # that a scatter shows
EXPERT_MARKS = 50  # on top of it
SQUARE = (0.4, 2.5)  # ratios of width to height that are drawn to scale


@dataclass(frozen=True)
class Plane:
    """Two coordinates of the state to draw: dimensions of it, or directions of largest spread."""

    axes: np.ndarray  # (2, width)
    names: tuple[str, str]
    centre: np.ndarray
    dims: tuple[int, int] | None = None

    def project(self, states: np.ndarray) -> np.ndarray:
        if self.dims:
            return np.asarray(states[:, list(self.dims)], np.float64)
        return (states - self.centre) @ self.axes.T


def choose_plane(dataset: Dataset, dims: tuple[int, int] | None = None) -> Plane:
    """`dims`, else what the environment says is worth drawing, else two principal components of the offline states."""
    width = dataset["observations"].shape[1]
    if dims is None and dataset.env in envs.ENVIRONMENTS:
        dims = envs.ENVIRONMENTS[dataset.env].plot_dims
    if dims:
        names = (dataset.name_of(dims[0]), dataset.name_of(dims[1]))
        return Plane(np.eye(width)[list(dims)], names, np.zeros(width), dims)
    every = max(1, dataset.rows // 50_000)
    centre, std = np.asarray(dataset["mean"], np.float64), np.asarray(dataset["std"], np.float64)
    z = (dataset["observations"][::every] - centre) / std
    _, vectors = np.linalg.eigh(np.atleast_2d(np.cov(z, rowvar=False)) if len(z) > 1 else np.eye(width))
    axes = np.zeros((2, width))  # the second stays 0 where states have one dimension
    axes[:width] = vectors[:, ::-1][:, :2].T / std
    return Plane(axes, ("component 1", "component 2"), centre)


def expert_points(dataset: Dataset, plane: Plane) -> np.ndarray | None:
    """The expert's states in the plane; None where they do not hold the drawn dimensions."""
    states = dataset["expert/observations"]
    if len(dataset.dims) == dataset["observations"].shape[1]:
        return plane.project(states)
    if plane.dims and set(plane.dims) <= set(dataset.dims):
        columns = [dataset.dims.index(dim) for dim in plane.dims]
        return np.asarray(states[:, columns], np.float64)
    return None


def state_map(dataset: Dataset, w: np.ndarray | None, plane: Plane, bins: int = 60) -> dict[str, Any]:
    """Shares of offline rows, of weight and of expert states in the cells of one grid, by name, and its edges.

    Expert states that hold only some dimensions are left out unless those are the drawn ones.
    """
    points, expert = plane.project(dataset["observations"]), expert_points(dataset, plane)
    low, high = np.quantile(points, (0.0005, 0.9995), axis=0)
    margin = 0.03 * (high - low) + 1e-6
    edges = [np.linspace(a, b, bins + 1) for a, b in zip(low - margin, high + margin, strict=True)]

    def count(places: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
        return np.histogram2d(places[:, 0], places[:, 1], edges, weights=weights)[0]

    return {
        "edges": edges,
        "offline": count(points) / len(points),
        "weighted": None if w is None else count(points, w) / w.sum(),
        "expert": None if expert is None else count(expert) / len(expert),
    }


def density_panel(plane: Plane, cells: dict[str, Any]) -> Panel:
    """The state map: one picture for each share that there is, on one colour scale."""
    caption = "Where the data are, where the weights put them, and where the expert is, on one colour scale."
    return Panel("density", "State map", caption, draw_density, (plane, cells), wide=True)


def draw_density(figure: Any, plane: Plane, cells: dict[str, Any]) -> None:
    from matplotlib.colors import LogNorm

    titles = {"offline": "offline data", "weighted": "weighted: what is cloned", "expert": "expert states"}
    shown = {title: cells[key] for key, title in titles.items() if cells[key] is not None}
    x, y = cells["edges"]
    top = max(float(found.max()) for found in shown.values())
    norm = LogNorm(top / 10**DECADES_SHOWN, top)
    axes = _side_by_side(figure, plane, list(shown), x[-1] - x[0], y[-1] - y[0])
    for one, found in zip(axes, shown.values(), strict=True):
        image = one.pcolormesh(x, y, np.ma.masked_equal(found.T, 0), norm=norm, rasterized=True)
    colour_bar(figure, image, axes, "share per cell")


def draw_weight_map(figure: Any, dataset: Dataset, plane: Plane, shown: dict[str, np.ndarray]) -> None:
    """A sample of the states, coloured by each of the weights in `shown`."""
    from matplotlib.colors import Normalize

    rows = sample_rows(dataset.rows, POINTS)
    points, expert = plane.project(dataset["observations"][rows]), expert_points(dataset, plane)
    axes = _side_by_side(figure, plane, list(shown), *np.ptp(points, axis=0))
    for one, w in zip(axes, shown.values(), strict=True):
        order = np.argsort(w[rows], kind="stable")  # the heaviest on top
        norm = Normalize(0, float(np.quantile(w[w > 0], 0.998)))
        image = one.scatter(*points[order].T, c=w[rows][order], s=7, lw=0, norm=norm, rasterized=True)
        colour_bar(figure, image, one, "weight")
        if expert is not None:
            marks = expert[:: -(-len(expert) // EXPERT_MARKS)]
            one.scatter(*marks.T, s=14, marker="x", lw=0.8, color="C1", label="expert states")
    if expert is not None:
        axes[0].legend()


def _side_by_side(figure: Any, plane: Plane, titles: list[str], width: float, height: float) -> np.ndarray:
    """Axes for points that reach this far, on one scale where that suits them."""
    axes = np.atleast_1d(figure.subplots(1, len(titles), sharex=True, sharey=True))
    for one, title in zip(axes, titles, strict=True):
        one.set(xlabel=plane.names[0], ylabel=plane.names[1] if one is axes[0] else "", title=title)
        one.grid(False)
        if plane.dims and SQUARE[0] < width / height < SQUARE[1]:
            one.set_aspect("equal")
    return axes
