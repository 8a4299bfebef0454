"""The picture of a solved gridworld: occupancy heat map, walls, expert and learned path, start and goal."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = np.ndarray
SOFTWARE = "smodice tabular"  # PNG text chunk by which a picture is recognised as ours

INK, MUTED, PAPER, WALL, GRID = "#22252b", "#5f6672", "#ffffff", "#4a4f5a", "#e3e6eb"
LEARNED, EXPERT, START, GOAL = "#1f5fbf", "#22252b", "#ffffff", "#2e9e5b"
HEAT = ("#ffffff", "#fdf1dc", "#fbd9a2", "#f5b266", "#e6813f", "#c4502b")


def is_ours(path: Path) -> bool:
    """Whether a PNG was drawn by this module (its text chunk says so)."""
    with open(path, "rb") as handle:
        return SOFTWARE.encode() in handle.read(2048)


def save(path: Path, arrays: Mapping[str, Array], config: Mapping[str, Any], metrics: Mapping[str, Any]) -> None:
    """Draw the arrays of a tabular artifact into a PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    walls = np.asarray(arrays["walls"]).astype(bool)
    height, width = walls.shape
    scale = min(1.0, 12.0 / max(height, width) + 0.35)  # marks shrink on large grids
    wide = min(6.0, 10.0 * width / height)
    left, right, top, bottom = 0.35, 1.15, 1.0, 0.6  # margins in inches
    page = (max(left + wide + right, 6.4), top + wide * height / width + bottom)
    figure = Figure(figsize=page, dpi=150, facecolor=PAPER)
    FigureCanvasAgg(figure)
    axes = figure.add_axes((left / page[0], bottom / page[1], wide / page[0], 1.0 - (top + bottom) / page[1]))
    image = _heat(axes, np.asarray(arrays["state_occupancy"]).reshape(height, width), walls)
    _cells(axes, walls)
    torus = bool(config["torus"])
    if "expert_path" in arrays:
        _path(axes, arrays["expert_path"], walls.shape, torus, EXPERT, 2.0 * scale, "expert", dashed=True)
    _path(axes, arrays["path"], walls.shape, torus, LEARNED, 3.0 * scale, "imitator")
    _marks(axes, arrays["starts"], arrays["goals"], walls.shape, scale)
    _words(figure, axes, config, metrics)
    box = axes.get_position()
    bar = figure.colorbar(image, cax=figure.add_axes((box.x1 + 0.17 / page[0], box.y0, 0.16 / page[0], box.height)))
    bar.outline.set_visible(False)  # type: ignore[operator]
    bar.minorticks_off()
    bar.ax.tick_params(labelsize=8.5, length=0, colors=INK)
    bar.ax.set_ylabel("state occupancy $d^\\pi(s)$", fontsize=9, color=INK, labelpad=6)
    figure.savefig(path, format="png", metadata={"Software": SOFTWARE})


def _heat(axes: Axes, occupancy: Array, walls: Array) -> Any:
    """Occupancy on a log scale: the goal holds most of the mass, the path about 1 % a cell."""
    from matplotlib.colors import LinearSegmentedColormap, LogNorm

    plain = LinearSegmentedColormap.from_list("occupancy", HEAT)
    colours = plain.with_extremes(under=HEAT[0], bad=PAPER)
    top = max(float(occupancy.max()), 1e-6)
    floor = min(1e-4, 0.01 / occupancy.size)  # cells on a large grid hold less each
    shown = np.ma.array(np.maximum(occupancy, 1e-300), mask=walls)
    return axes.imshow(shown, cmap=colours, norm=LogNorm(top * floor, top), interpolation="nearest", zorder=0)


def _cells(axes: Axes, walls: Array) -> None:
    height, width = walls.shape
    if max(height, width) <= 40:
        axes.hlines(np.arange(0.5, height - 1), -0.5, width - 0.5, color=GRID, lw=0.8, zorder=1)
        axes.vlines(np.arange(0.5, width - 1), -0.5, height - 0.5, color=GRID, lw=0.8, zorder=1)
    from matplotlib.colors import ListedColormap

    solid = np.ma.array(np.ones(walls.shape), mask=~walls)
    axes.imshow(solid, cmap=ListedColormap([WALL]), interpolation="nearest", zorder=2)  # over the cell lines
    axes.set(xticks=[], yticks=[], xlim=(-0.5, width - 0.5), ylim=(height - 0.5, -0.5), aspect="equal")
    axes.set_anchor("C")
    for side in axes.spines.values():
        side.set(color=INK, linewidth=1.1)


def segments(path: Array, shape: tuple[int, int], torus: bool) -> list[tuple[float, float, float, float]]:
    """Moves as (x0, y0, x1, y1); a move across the torus' edge becomes two halves that leave and enter the map."""
    width = shape[1]
    pieces = []
    rows, columns = np.divmod(np.asarray(path), width)
    for y0, x0, y1, x1 in zip(rows[:-1], columns[:-1], rows[1:], columns[1:], strict=True):
        dy, dx = int(y1 - y0), int(x1 - x0)
        if torus and (abs(dy) > 1 or abs(dx) > 1):
            dy = dy if abs(dy) <= 1 else -int(np.sign(dy))
            dx = dx if abs(dx) <= 1 else -int(np.sign(dx))
            pieces.append((x0, y0, x0 + 0.5 * dx, y0 + 0.5 * dy))
            pieces.append((x1 - 0.5 * dx, y1 - 0.5 * dy, x1, y1))
        else:
            pieces.append((x0, y0, x1, y1))
    return [(float(a), float(b), float(c), float(d)) for a, b, c, d in pieces]


def _path(
    axes: Axes,
    path: Array,
    shape: tuple[int, int],
    torus: bool,
    colour: str,
    width: float,
    label: str,
    dashed: bool = False,
) -> None:
    pieces = segments(np.asarray(path), shape, torus)
    if not pieces:
        return
    style: Any = (0, (1.2, 1.6)) if dashed else "solid"
    for number, (x0, y0, x1, y1) in enumerate(pieces):
        line = {"color": colour, "lw": width, "ls": style, "zorder": 4 if dashed else 5, "solid_capstyle": "round"}
        axes.plot([x0, x1], [y0, y1], label=label if number == 0 else None, dash_capstyle="round", **line)
    every = 1 if len(pieces) <= 20 else len(pieces) // 8  # a long path carries eight or so arrow heads
    for x0, y0, x1, y1 in pieces[every // 2 :: every]:
        _arrow(axes, x0, y0, x1, y1, colour, width, 4 if dashed else 5)


def _arrow(axes: Axes, x0: float, y0: float, x1: float, y1: float, colour: str, width: float, order: int) -> None:
    """An arrow head whose tip lies a little beyond the middle of the move."""
    share = 0.62 if np.hypot(x1 - x0, y1 - y0) > 0.75 else 0.9
    tip, tail = ((x0 + s * (x1 - x0), y0 + s * (y1 - y0)) for s in (share, share - 0.1))
    style = {
        "arrowstyle": "-|>,head_length=0.55,head_width=0.32",
        "color": colour,
        "lw": 0.0,
        "shrinkA": 0,
        "shrinkB": 0,
    }
    axes.annotate("", tip, tail, arrowprops=style | {"mutation_scale": 6.0 + 5.0 * width}, zorder=order)


def _marks(axes: Axes, starts: Array, goals: Array, shape: tuple[int, int], scale: float) -> None:
    for cells, marker, size, face, name in (
        (starts, "o", 11, START, "start"),
        (goals, "*", 21, GOAL, "success"),
    ):
        rows, columns = np.divmod(np.asarray(cells), shape[1])
        axes.plot(
            columns, rows, marker, ms=size * scale, mfc=face, mec=INK, mew=1.3 * scale, label=name, zorder=7, ls=""
        )


def _words(figure: Any, axes: Axes, config: Mapping[str, Any], metrics: Mapping[str, Any]) -> None:
    titles = {"mismatched": "Mismatched expert", "example": "Imitation from one success state", "map": "Gridworld"}
    left, high = 0.35 / figure.get_figwidth(), figure.get_figheight()
    title = f"{titles[config['task']]}  ({config['f']}, $\\gamma$ = {config['gamma']:g})"
    figure.text(left, 1 - 0.36 / high, title, fontsize=13.5, weight="bold", color=INK, va="center")
    arrived = "" if metrics["path_reaches_goal"] else ", stops before the goal"
    line = (
        f"occupancy of success {metrics['success_occupancy']:.3f}, next largest {metrics['next_largest_occupancy']:.2g}"
        f"   ·   greedy path {metrics['path_length']} moves, shortest {metrics['shortest_length']}{arrived}"
    )
    figure.text(left, 1 - 0.70 / high, line, fontsize=9.5, color=MUTED, va="center")
    legend = axes.legend(
        loc="upper left",
        bbox_to_anchor=(0.0, -0.11 / (axes.get_position().height * high)),
        bbox_transform=axes.transAxes,
        ncols=4,
        frameon=False,
        fontsize=9.5,
        handlelength=2.4,
        columnspacing=1.6,
        borderpad=0.0,
        borderaxespad=0.0,
        labelcolor=INK,
    )
    for handle in legend.legend_handles:
        marker = getattr(handle, "get_marker", str)()
        if marker in ("o", "*"):
            handle.set_markersize({"o": 9, "*": 13}[marker])  # type: ignore[union-attr]
    if config["torus"]:
        right = axes.get_position().x1
        figure.text(right, 0.41 / high, "edges wrap around", fontsize=9, color=MUTED, ha="right", va="center")
