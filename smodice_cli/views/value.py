"""value: V from the start to the end of the trajectories, by label."""

from __future__ import annotations

from smodice_cli import artifacts
from smodice_cli.console import escape
from smodice_cli.errors import SmodiceError
from smodice_cli.lazy import np
from smodice_cli.views import Block, Facts, Opened, Panel, Request, Table, View
from smodice_cli.views.choice import chosen_rows, parts
from smodice_cli.views.plots import draw_profiles, profile

# The effective sample is that of all rows; what is logged while V trains is another, of segments of trajectories that
# are held out.
ON_SEGMENTS = {name: f"{name}_of_held_out_segments" for name in ("effective_share", "largest_share", "mean_ratio")}


class ValueView(View):
    """What the value function learned."""

    logged = ON_SEGMENTS

    def figures(self, opened: Opened, request: Request) -> Facts:
        if opened.artifact.header.config.get("estimator") == "returns":
            return {"without_value": "there is no V: the weights are those of trajectory returns (value.estimator)"}
        try:
            arrays = artifacts.follow(opened.artifact, "weights", "weights").arrays
        except SmodiceError as error:
            return {"without_value": f"without its weights: {error.message}"}
        v, t = np.asarray(arrays["v"], np.float64), np.asarray(arrays["t"])
        lengths = np.bincount(arrays["episode"])[arrays["episode"]]
        fifth = np.minimum((5 * t) // np.maximum(lengths, 1), 4)
        found = {}
        for name, rows in parts(chosen_rows(opened.dataset), len(v)).items():
            each = [v[rows & (fifth == number)] for number in range(5)]
            means = [float(part.mean()) if len(part) else None for part in each]
            found[name] = {"fifths": means, **profile(v[rows], t[rows])}
        return {"value": found}

    def blocks(self, facts: Facts) -> list[Block]:
        if "value" not in facts:
            return [[f"[yellow]{escape(facts['without_value'])}[/]"]]
        rows = [
            [name, *("" if mean is None else f"{mean:.4g}" for mean in entry["fifths"])]
            for name, entry in facts["value"].items()
        ]
        columns = ["mean V", "first fifth", "second", "third", "fourth", "last fifth"]
        return [Table("V along the trajectories", columns, rows)]

    def panels(self, opened: Opened, facts: Facts, request: Request) -> list[Panel]:
        curves = super().panels(opened, facts, request)
        if "value" not in facts:
            return curves
        title, caption = "V along the trajectories", "Mean and middle half of V by time step."
        return [Panel("value", title, caption, draw_profiles, ("V(s)", facts["value"])), *curves]
