"""disc: how well R tells expert from offline states, its histogram by source, and how often it is saturated."""

from __future__ import annotations

from typing import Any

from smodice_cli.lazy import np
from smodice_cli.statistics import auroc
from smodice_cli.views import Block, Facts, Opened, Panel, Request, View, figures, records
from smodice_cli.views.choice import chosen_rows
from smodice_cli.views.plots import draw_shares, sample_rows, shares_lines, shares_of_most, spread
from smodice_cli.views.render.terminal import columns

SATURATED = 5.0  # |R| beyond which the classifier is all but certain (c above 0.993 or below 0.007)


class DiscView(View):
    """What the discriminator learned."""

    def figures(self, opened: Opened, request: Request) -> Facts:
        dataset, header = opened.dataset, opened.artifact.header
        if dataset is None:
            return {}
        rows = sample_rows(dataset.rows)
        offline = np.asarray(opened.artifact.arrays["reward"][rows], np.float64)
        expert = np.asarray(opened.artifact.arrays["expert_reward"], np.float64)
        both = np.concatenate([expert, offline])
        source, chosen = dataset.source_of_row()[rows], chosen_rows(dataset)
        groups = {"expert states": expert}
        groups |= {label: offline[source == i] for i, label in enumerate(dataset.sources) if (source == i).any()}
        found: dict[str, Any] = {
            "auc": auroc(both, np.arange(len(both)) < len(expert)),
            "groups": {
                name: {**spread(values), "saturated": float((np.abs(values) > SATURATED).mean()), "states": len(values)}
                for name, values in groups.items()
            },
            "histogram": shares_of_most(groups),
        }
        if chosen is not None and chosen.rows[rows].any() and not chosen.rows[rows].all():
            found["label"] = {"name": chosen.name, "auc": auroc(offline, chosen.rows[rows])}
        if "auc" in header.metrics:
            found["held_out_auc"] = header.metrics["auc"]
        return {"reward": found}

    def blocks(self, facts: Facts) -> list[Block]:
        if "reward" not in facts:
            return []
        found = facts["reward"]
        label = f"AUC, offline rows: {found.get('label', {}).get('name')} against the rest"
        apart = columns("tells-apart") | {label: "{label[auc]:.3f}"}
        groups = [{"group": name, **group} for name, group in found["groups"].items()]
        histogram = shares_lines("R(s)", found["histogram"])
        return [histogram, records("reward", columns("reward"), groups), figures("tells apart", apart, found)]

    def panels(self, opened: Opened, facts: Facts, request: Request) -> list[Panel]:
        curves = super().panels(opened, facts, request)
        if "reward" not in facts:
            return curves
        title, caption = "R(s) by group", "The discriminator's logit, log d^E/d^O, on expert and on offline states."
        return [Panel("reward", title, caption, draw_shares, ("R(s)", facts["reward"]["histogram"])), *curves]
