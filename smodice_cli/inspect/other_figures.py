"""The pictures of the other artifacts: training curves, histograms, V along trajectories, episodes."""

from __future__ import annotations

from typing import Any

import numpy as np

from smodice_cli.inspect import weights
from smodice_cli.inspect.returns import of_scores, returns_panel
from smodice_cli.inspect.subject import Subject
from smodice_cli.inspect.theme import Panel, Theme, band, legend, style
from smodice_cli.inspect.views import Wish

MOST_CURVES = 6


def panels(subject: Subject, view: dict[str, Any], wish: Wish) -> list[Panel]:
    """Every picture that an artifact other than weights allows."""
    found: list[Panel] = []
    if subject.kind == "dataset" and subject.dataset:
        returns, lengths = weights.episode_returns(subject.dataset)
        source = subject.dataset["episode_source"]
        by_source = {
            label: (returns[source == i], lengths[source == i]) for i, label in enumerate(subject.dataset.sources)
        }
        for index, name in enumerate(("Return", "Length")):
            values = {label: pair[index] for label, pair in by_source.items() if len(pair[index])}
            found.append(values_panel(name.lower(), f"{name} of the trajectories", name.lower(), values))
        found.append(_map(subject, wish))
    if "reward" in view:
        title, caption = "R(s) by group", "The discriminator's logit, log d^E/d^O, on expert and on offline states."
        found.append(shares_panel("reward", title, caption, "R(s)", view["reward"]["histogram"]))
    if "value" in view:
        found.append(_value_panel(view["value"]))
    for action in view.get("actions", []) if subject.kind == "policy" else []:
        title = f"Action {action['dim']}"
        caption = f"The policy's actions on the {'weighted ' * view['weighted']}data against the data's own."
        found.append(shares_panel(f"action{action['dim']}", title, caption, "action", action["histogram"]))
    if "per_episode" in view:
        found.append(_episodes_panel(view["per_episode"]))
    if "curve" in view:
        line = {"this policy": of_scores(view["curve"])["mean_return"]}
        how = "the band is the deviation over the episodes"
        found.append(returns_panel("returns", "Return over training", "return", line, how))
    elif view.get("curves"):
        found.append(curves_panel(view["curves"], "Over training"))
    return found


def _map(subject: Subject, wish: Wish) -> Panel:
    from smodice_cli.inspect.figures import density_panel

    assert subject.dataset is not None
    cells = weights.state_map(subject.dataset, np.ones(subject.dataset.rows), weights.plane(subject.dataset, wish.dims))
    return density_panel({**cells, "weighted": None})


def curves_panel(curves: dict[str, dict[str, list[float]]], title: str) -> Panel:
    """Every figure of the training log on axes of its own, one below the other."""
    names = [name for name in curves if len(curves[name]["values"]) > 1][:MOST_CURVES]

    def draw(figure: Any, theme: Theme) -> None:
        columns = 1 if len(names) < 3 else 2
        axes = np.atleast_1d(figure.subplots(-(-len(names) // columns) or 1, columns, sharex=True)).reshape(-1)
        for one in axes[len(names) :]:
            one.set_visible(False)
        for index, name in enumerate(names):
            style(axes[index], theme, "step" if index >= len(names) - columns else "", "", name.replace("_", " "))
            steps, values = curves[name]["steps"], curves[name]["values"]
            axes[index].plot(steps, values, color=theme.series[index], lw=1.4)
            if len(steps) < 25:
                axes[index].plot(steps, values, "o", color=theme.series[index], ms=3)
            axes[index].locator_params(nbins=4)
            axes[index].ticklabel_format(useOffset=False)

    return Panel("curves", title, "What the stage logged while it trained.", draw)


def values_panel(key: str, title: str, label: str, groups: dict[str, np.ndarray]) -> Panel:
    """Histograms of numbers by group."""
    together = np.concatenate(list(groups.values())).astype(np.float64)
    low, high = float(together.min()), float(together.max())
    edges = np.linspace(low, high if high > low else low + 1.0, 41)
    shares = {name: (np.histogram(v, edges)[0] / len(v)).tolist() for name, v in groups.items()}
    caption = "Share of each group's trajectories."
    return shares_panel(key, title, caption, label, {"edges": edges.tolist(), "shares": shares})


def shares_panel(key: str, title: str, caption: str, label: str, histogram: dict[str, Any]) -> Panel:
    """Filled steps, one colour for each group."""

    def draw(figure: Any, theme: Theme) -> None:
        axes = style(figure.subplots(), theme, label, "share")
        for index, (name, shares) in enumerate(histogram["shares"].items()):
            colour = theme.series[index % len(theme.series)]
            axes.stairs(shares, histogram["edges"], color=colour, lw=1.8, label=name)
            axes.stairs(shares, histogram["edges"], color=colour, alpha=0.18, fill=True)
        axes.set_ylim(bottom=0)
        legend(axes, theme, loc="best")

    return Panel(key, title, caption, draw)


def _value_panel(found: dict[str, Any]) -> Panel:
    def draw(figure: Any, theme: Theme) -> None:
        axes = style(figure.subplots(), theme, "step in the trajectory", "V(s)")
        for index, (name, line) in enumerate(found.items()):
            band(axes, "t", line, theme.series[index % len(theme.series)], name)
        legend(axes, theme, loc="best")

    return Panel("value", "V along the trajectories", "Mean and middle half of V by time step.", draw)


def _episodes_panel(episodes: list[dict[str, Any]]) -> Panel:
    def draw(figure: Any, theme: Theme) -> None:
        axes = style(figure.subplots(), theme, "episode, in order of return", "return")
        ordered = sorted(episodes, key=lambda episode: episode["return"])
        kinds = sorted({episode["ended"] for episode in ordered})
        for index, kind in enumerate(kinds):
            at = [i for i, episode in enumerate(ordered) if episode["ended"] == kind]
            heights = [ordered[i]["return"] for i in at]
            axes.plot(at, heights, "o", ms=4.5, color=theme.series[index], label=f"{kind} ({len(at)})")
        axes.axhline(float(np.mean([e["return"] for e in ordered])), color=theme.muted, lw=1, ls=(0, (2, 2)))
        legend(axes, theme, loc="best")

    return Panel("episodes", "Episodes", "Return of every episode and how it ended; the dotted line is the mean.", draw)
