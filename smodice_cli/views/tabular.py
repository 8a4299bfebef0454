"""tabular: what came out in words, and the picture of a solved gridworld: occupancy, walls, paths, start and goal."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from smodice_cli import artifacts
from smodice_cli.artifacts import Header
from smodice_cli.lazy import np
from smodice_cli.views.render import output, png
from smodice_cli.views.render.theme import Panel, colour_bar

SOFTWARE = "smodice tabular"  # PNG text chunk by which a picture is recognised as ours
INK, WALL, LEARNED, GOAL = "#22252b", "#4a4f5a", "#1f5fbf", "#2e9e5b"
HEAT = ("#ffffff", "#fdf1dc", "#fbd9a2", "#f5b266", "#e6813f", "#c4502b")
TITLES = {"mismatched": "Mismatched expert", "example": "Imitation from one success state", "map": "Gridworld"}


def lines(out: Path, header: Header) -> list[str]:
    """What came out, for people."""
    figures = header.metrics
    shown = []
    if "success_occupancy" in figures:
        success, others = figures["success_occupancy"], figures["next_largest_occupancy"]
        reached = "reaches success in" if figures["path_reaches_goal"] else "stops short of success after"
        path = f"the path {reached} {figures['path_length']} moves (shortest {figures['shortest_length']})"
        shown.append(f"d(success) = {success:.4f}, next largest {others:.4f}; {path}")
        shown.append(f"picture: {out.with_suffix('.png')}")
    certificate = f"E[xi] = {figures['mean_ratio']:.9f}, flow residual {figures['flow_residual']:.1e}"
    states = f"{figures['fallback_states']} of {figures['states_in_data']} states in the data without weight"
    return [*shown, f"{certificate}, D_f = {figures['f_divergence']:.4f}, {states}", *header.notes]


def draw(out: Path) -> None:
    """Render the picture of a solved gridworld from its artifact alone; counts of one's own have no grid to draw."""
    artifact = artifacts.load(out, "tabular")
    if "walls" in artifact.arrays:
        height, width = artifact.arrays["walls"].shape
        wide = min(6.0, 10.0 * width / height)  # inches of the map
        shown = (artifact.arrays, artifact.header.config, artifact.header.metrics)
        panel = Panel("gridworld", "", "", draw_gridworld, shown)
        figure = png.render(panel, max(wide + 1.5, 6.4), wide * height / width + 1.6, dpi=150)
        output.write(out.with_suffix(".png"), png.encode(png.pixels(figure), Software=SOFTWARE))


def draw_gridworld(
    figure: Any, arrays: Mapping[str, np.ndarray], config: Mapping[str, Any], metrics: Mapping[str, Any]
) -> None:
    """Occupancy on a log scale (the goal holds most of the mass, the path about 1 % a cell), with paths and marks."""
    from matplotlib.colors import LinearSegmentedColormap, ListedColormap, LogNorm

    walls = np.asarray(arrays["walls"]).astype(bool)
    height, width = walls.shape
    figure.set_layout_engine("compressed", w_pad=0.2, h_pad=0.12)
    axes = figure.add_subplot(xticks=[], yticks=[])
    axes.grid(False)
    axes.spines[:].set(visible=True, color=INK, linewidth=1.1)
    occupancy = np.asarray(arrays["state_occupancy"]).reshape(walls.shape)
    top = max(float(occupancy.max()), 1e-6)
    floor = min(1e-4, 0.01 / occupancy.size)  # cells on a large grid hold less each
    colours = LinearSegmentedColormap.from_list("occupancy", HEAT).with_extremes(under=HEAT[0])
    cells = np.ma.array(np.maximum(occupancy, 1e-300), mask=walls)
    image = axes.imshow(cells, cmap=colours, norm=LogNorm(top * floor, top), interpolation="nearest", zorder=0)
    if max(height, width) <= 40:
        axes.hlines(np.arange(0.5, height - 1), -0.5, width - 0.5, color="#e3e6eb", lw=0.8, zorder=1)
        axes.vlines(np.arange(0.5, width - 1), -0.5, height - 0.5, color="#e3e6eb", lw=0.8, zorder=1)
    solid = np.ma.array(np.ones(walls.shape), mask=~walls)
    axes.imshow(solid, cmap=ListedColormap([WALL]), interpolation="nearest", zorder=2)  # over the cell lines
    colour_bar(figure, image, axes, "state occupancy $d^\\pi(s)$")

    scale = min(1.0, 12.0 / max(height, width) + 0.35)  # marks shrink on large grids
    torus = bool(config["torus"])
    if "expert_path" in arrays:
        expert = segments(arrays["expert_path"], walls.shape, torus)
        _path(axes, expert, 2.0 * scale, "expert", color=INK, ls=(0, (1.2, 1.6)), zorder=4)
    _path(axes, segments(arrays["path"], walls.shape, torus), 3.0 * scale, "imitator", color=LEARNED, zorder=5)
    marks = (("starts", "start", "o", "#ffffff", 11), ("goals", "success", "*", GOAL, 21))
    for name, label, marker, colour, size in marks:
        rows, columns = np.divmod(np.asarray(arrays[name]), width)
        look = {"ms": size * scale, "mfc": colour, "mec": INK, "mew": 1.3 * scale, "zorder": 7}
        axes.plot(columns, rows, marker, label=label, **look)

    title = f"{TITLES[config['task']]}  ({config['f']}, $\\gamma$ = {config['gamma']:g})"
    figure.suptitle(title, x=0.2 / figure.get_figwidth(), ha="left", fontsize=13.5)
    arrived = "" if metrics["path_reaches_goal"] else ", stops before the goal"
    line = (
        f"occupancy of success {metrics['success_occupancy']:.3f}, next largest {metrics['next_largest_occupancy']:.2g}"
        f"   ·   greedy path {metrics['path_length']} moves, shortest {metrics['shortest_length']}{arrived}"
    )
    axes.set_title(line, color="#5f6672")
    axes.set_xlabel("edges wrap around" if torus else "", loc="right")
    figure.legend(loc="outside lower left", ncols=4, fontsize=9.5, handlelength=2.4, markerscale=0.65)


def segments(path: np.ndarray, shape: tuple[int, int], torus: bool) -> list[tuple[float, float, float, float]]:
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


def _path(axes: Any, moves: list[Any], width: float, label: str, **look: Any) -> None:
    """The moves as lines with arrow heads."""
    for number, (x0, y0, x1, y1) in enumerate(moves):
        caps = {"solid_capstyle": "round", "dash_capstyle": "round"}
        axes.plot([x0, x1], [y0, y1], lw=width, label=None if number else label, **caps, **look)
    every = 1 if len(moves) <= 20 else len(moves) // 8  # a long path carries eight or so arrow heads
    for x0, y0, x1, y1 in moves[every // 2 :: every]:  # their tips lie a little beyond the middle of the move
        share = 0.62 if np.hypot(x1 - x0, y1 - y0) > 0.75 else 0.9
        tip, tail = ((x0 + s * (x1 - x0), y0 + s * (y1 - y0)) for s in (share, share - 0.1))
        head = {"arrowstyle": "-|>,head_length=0.55,head_width=0.32", "mutation_scale": 6.0 + 5.0 * width}
        flat = {"color": look["color"], "lw": 0.0, "shrinkA": 0, "shrinkB": 0}
        axes.annotate("", tip, tail, arrowprops=head | flat, zorder=look["zorder"])
