"""selection: what select-f found, as a line for each candidate, as a table and as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from smodice_cli.views.opened import Facts
from smodice_cli.views.render import output, png
from smodice_cli.views.render.theme import Panel


def line(f: str, entry: Facts) -> str:
    """One candidate in one line."""
    if "diverged" in entry:
        return f"{f}: diverged ({entry['diverged']})"
    losses = ", ".join(f"{point['relative_loss']:.3f}" for point in entry["points"])
    return f"{f}: policy loss {entry['direction']} ({losses}), weights {entry['level']}"


def table(payload: Facts) -> tuple[list[str], list[list[str]]]:
    """The evidence as columns and rows."""
    columns = ["f", "policy loss", "as V trains (equal weights: 1)", "effective sample", "held out", "weights", ""]
    rows = []
    for f, entry in payload["candidates"].items():
        found = ["diverged", "", "", "", ""]
        if "diverged" not in entry:
            losses = "  ".join(f"{point['relative_loss']:.3f}" for point in entry["points"])
            watched = entry["points"][-1].get("held_out_effective_share")
            held_out = "" if watched is None else f"{100 * watched:.1f} %"
            found = [entry["direction"], losses, f"{100 * entry['effective_share']:.1f} %", held_out, entry["level"]]
        rows.append([f, *found, "recommended" if f == payload["recommended"] else ""])
    return columns, rows


def draw(out: Path, payload: Facts) -> Path:
    """The picture, beside the selection: select-f.json -> select-f.png."""
    drawn = png.pixels(png.render(Panel("selection", "", "", draw_candidates, (payload,)), 9.6, 3.8))
    return output.write(out.with_suffix(".png"), png.encode(drawn, Software=output.MARK))


def draw_candidates(figure: Any, payload: Facts) -> None:
    """The policy loss and the effective sample of every candidate against V's training."""
    left, right = figure.subplots(1, 2, subplot_kw={"xlabel": "steps of V"})
    left.set(ylabel="policy loss on unseen trajectories", title="policy loss (equal weights: 1)")
    right.set(ylabel="effective sample, %", title="health of the weights")
    for f, entry in payload["candidates"].items():
        points, best = entry["points"], f == payload["recommended"]
        steps = [point["steps"] for point in points]
        look = {"label": f"{f}, recommended" if best else f, "lw": 2.6 if best else 1.6}
        left.plot([0, *steps], [1.0, *(point["relative_loss"] for point in points)], marker="o", **look)
        right.plot(steps, [100 * point["effective_share"] for point in points], marker="o", **look)
    left.axhline(1, ls="--")
    left.set_ylim(bottom=0)
    right.set_ylim(bottom=0)
    left.legend()
