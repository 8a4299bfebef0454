"""dataset: episodes, lengths and returns by source; ranges of states and actions, offline and of the expert."""

from __future__ import annotations

from typing import Any

from smodice_cli.data import Dataset
from smodice_cli.lazy import np
from smodice_cli.views import Block, Facts, Opened, Panel, Records, Request, View, records
from smodice_cli.views.choice import episode_returns
from smodice_cli.views.opened import plane_of
from smodice_cli.views.places import choose_plane, density_panel, state_map
from smodice_cli.views.plots import draw_shares, shares, spread
from smodice_cli.views.render.terminal import columns

AT_LIMIT = 0.99  # of the action range
EXPERT = "{expert_mean:.3g} ({expert_min:.3g} to {expert_max:.3g})"


class DatasetView(View):
    """What offline data and expert states hold."""

    def figures(self, opened: Opened, request: Request) -> Facts:
        dataset = opened.dataset
        assert dataset is not None
        return {
            "sources": sources(dataset),
            "states": state_ranges(dataset),
            "actions": action_ranges(dataset),
            "expert_states": len(dataset["expert/observations"]),
        }

    def blocks(self, facts: Facts) -> list[Block]:
        title = f"states: {facts['metrics']['rows']:,} offline, {facts['expert_states']:,} of the expert"
        states = [{"expert": EXPERT.format_map(s) if "expert_min" in s else "", **s} for s in facts["states"]]
        return [
            records("actions", columns("actions"), facts["actions"]),
            records(title, columns("states"), states),
            records("sources", columns("sources"), facts["sources"]),
        ]

    def panels(self, opened: Opened, facts: Facts, request: Request) -> list[Panel]:
        dataset = opened.dataset
        assert dataset is not None
        plane, found = choose_plane(dataset, plane_of(request.dims, dataset)), []
        for name, values in zip(("Return", "Length"), episode_returns(dataset), strict=True):
            if name == "Return" and not dataset.rewarded:
                continue
            source = dataset["episode_source"]
            groups = {label: values[source == i] for i, label in enumerate(dataset.sources) if (source == i).any()}
            low, high = float(values.min()), float(values.max())
            histogram = shares(groups, np.linspace(low, high if high > low else low + 1.0, 41))
            title, caption = f"{name} of the trajectories", "Share of each group's trajectories."
            found.append(Panel(name.lower(), title, caption, draw_shares, (name.lower(), histogram)))
        maps = density_panel(plane, state_map(dataset, None, plane))
        return [*found, maps, *super().panels(opened, facts, request)]

    def tables(self, opened: Opened, facts: Facts) -> dict[str, Records]:
        return {".csv": [_flat(source) for source in facts["sources"]]}


def sources(dataset: Dataset) -> Records:
    """Every source that has episodes: how many, how long, with which returns, and how many the task itself ended."""
    returns, lengths = episode_returns(dataset)
    ended = dataset["terminals"][dataset.offsets[1:] - 1] != 0
    found = []
    for index, label in enumerate(dataset.sources):
        mine = dataset["episode_source"] == index
        if mine.any():
            sizes = {"episodes": int(mine.sum()), "rows": int(lengths[mine].sum())}
            spreads = {"length": spread(lengths[mine])}
            spreads |= {"return": spread(returns[mine])} if dataset.rewarded else {}
            found.append({"source": label, **sizes, **spreads, "ended_by_task": float(ended[mine].mean())})
    return found


def state_ranges(dataset: Dataset) -> Records:
    """Each dimension's range in the offline states and, where the expert shares it, in the expert's."""
    states, expert = dataset["observations"], dataset["expert/observations"]
    figures = {"min": states.min(axis=0), "mean": dataset["mean"], "std": dataset["std"], "max": states.max(axis=0)}
    found = []
    for dim in range(states.shape[1]):
        entry: dict[str, Any] = {
            "dim": dim,
            "name": dataset.name_of(dim),
            **{name: float(column[dim]) for name, column in figures.items()},
        }
        if dim in dataset.dims:
            theirs = spread(expert[:, dataset.dims.index(dim)])
            entry |= {f"expert_{name}": theirs[name] for name in ("min", "mean", "max")}
        found.append(entry)
    return found


def action_ranges(dataset: Dataset) -> Records:
    """Each action's range, and how often it sits at its limit."""
    actions = dataset["actions"]
    limit = at_limit(dataset, actions).mean(axis=0)
    return [
        {"dim": dim, "name": dataset.action_name(dim), **spread(actions[:, dim]), "at_limit": float(limit[dim])}
        for dim in range(actions.shape[1])
    ]


def at_limit(dataset: Dataset, actions: np.ndarray) -> np.ndarray:
    """Which actions are as far from the middle of their range as they can be."""
    low, high = dataset["action_low"], dataset["action_high"]
    return np.abs(actions - (low + high) / 2) >= AT_LIMIT * (high - low) / 2


def _flat(record: dict[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in record.items():
        flat |= {f"{name}_{key}": inner for key, inner in value.items()} if isinstance(value, dict) else {name: value}
    return flat
