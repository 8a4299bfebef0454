"""Views for people at a terminal: blocks of tables and of lines with markup, in reading order."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

from smodice_cli.console import escape
from smodice_cli.inspect.diagnostics import LEVELS

BAR = 28  # characters of the longest bar
LINE = 100  # characters of a line of settings
EIGHTHS = " ▏▎▍▌▋▊▉█"
SPARKS = "▁▂▃▄▅▆▇█"
WORDS = {"green": "healthy", "yellow": "look closer", "red": "not fit to train on"}
NEVER = "labels serve this view only; they never reach training"


class Table(NamedTuple):
    """A table: its title, columns and rows."""

    title: str
    columns: list[str]
    rows: list[list[str]]


Block = Table | list[str]  # a list: lines with markup


def blocks(view: dict[str, Any]) -> list[Block]:
    """Everything about an artifact, the verdict last, where the eye is."""
    shown: list[Block] = _heading(view)
    body = {
        "weights": _weights,
        "dataset": _dataset,
        "disc": _disc,
        "value": _value,
        "policy": _policy,
        "eval": _eval,
    }.get(view["kind"])
    if body:
        shown += body(view)
    elif view["metrics"]:
        shown.append(Table("figures", ["", ""], [[name, short(value)] for name, value in view["metrics"].items()]))
    if "curves" in view and view["kind"] != "dataset":
        shown.insert(len(_heading(view)), _curves(view["curves"]))
    if "without_dataset" in view:
        missing = view["without_dataset"]
        views = ", ".join(missing["views"]) if view["kind"] == "weights" else "all that looks at the data"
        shown.append([f"[yellow]without its dataset[/] ({escape(missing['why'])}) there is no: {views}"])
    return shown


def short(value: Any) -> str:
    """A figure in few characters."""
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def percent(share: float) -> str:
    """A share in per cent, with as many digits as it needs."""
    size = 100 * share
    return f"{size:.1f} %" if size >= 0.1 or size == 0 else f"{size:.2g} %"


def bar(share: float, width: int = BAR) -> str:
    """A bar of block characters, `width` at a share of 1."""
    eighths = round(8 * width * min(max(share, 0.0), 1.0))
    return "█" * (eighths // 8) + (EIGHTHS[eighths % 8] if eighths % 8 else "")


def spark(values: Sequence[float], width: int = 40) -> str:
    """A curve in one line: at most `width` points, lowest to highest."""
    every = max(1, -(-len(values) // width))
    points = [sum(values[i : i + every]) / len(values[i : i + every]) for i in range(0, len(values), every)]
    low, high = min(points), max(points)
    size = (high - low) or 1.0
    return "".join(SPARKS[min(int(8 * (p - low) / size), 7)] for p in points)


def _heading(view: dict[str, Any]) -> list[Block]:
    facts = f"{view['kind']} artifact of smodice {view['stage']}, seed {view['seed']}, made in {view['seconds']:.1f} s"
    shown: list[Block] = [[f"[bold]{escape(view['path'])}[/]", f"{facts}, digest {view['digest'][:12]}"]]
    if view["config"]:
        shown.append(_settings(view["config"]))
    if view["provenance"]:
        rows = [[entry["input"], entry["path"], entry["digest"][:12], entry["state"]] for entry in view["provenance"]]
        shown.append(Table("made from", ["input", "path", "digest", "state"], rows))
    if view["notes"]:
        shown.append([f"[yellow]note[/]  {escape(note)}" for note in view["notes"]])
    return shown


def _settings(config: dict[str, Any]) -> list[str]:
    """Settings side by side, in as many lines as they need."""
    lines, width = ["[dim]settings[/]"], LINE
    for name, given in config.items():
        value = (", ".join(given) if isinstance(given, list) else str(given)) or "none"
        size = len(f"  {name} {value}")
        if width + size > LINE:
            lines.append("")
            width = 0
        lines[-1] += f"  {name} [bold]{escape(value)}[/]"
        width += size
    return lines


def _curves(curves: dict[str, dict[str, list[float]]]) -> Table:
    rows = []
    for name, curve in curves.items():
        if values := curve["values"]:
            rows.append([name, spark(values), f"{values[0]:.4g}", f"{min(values):.4g}", f"{values[-1]:.4g}"])
    return Table("over training", ["figure", "", "first", "least", "last"], rows)


# --- weights ---------------------------------------------------------------------------------------------------------


def _weights(view: dict[str, Any]) -> list[Block]:
    shown: list[Block] = []
    if "histogram" in view:
        shown.append(_histogram(view["histogram"]))
    if "trajectories" in view:
        shown.append(_trajectories(view["trajectories"]))
    if "what_if" in view:
        shown += _what_if(view["what_if"])
    if "trajectory" in view:
        shown.append(_trajectory(view["trajectory"]))
    if "compare" in view:
        shown.append(_compare(view["compare"]))
    shown.append(_by_source(view["health"]))
    if "expert" in view:
        shown.append(_expert(view["expert"]))
    shown.append(card(view))
    shown.append(verdict_lines(view["verdict"]))
    return shown


def card(view: dict[str, Any]) -> Table:
    """The health card."""
    health = view["health"]
    k = health["pareto_k"]
    rows = [
        ["rows", f"{health['rows']:,}"],
        ["effective sample size", f"{health['effective_sample_size']:,.0f} ({percent(health['effective_share'])})"],
        ["largest row's share", percent(health["largest_share"])],
        ["heaviest 1 % of rows hold", percent(health["top_1_percent_share"])],
        ["exact zeros", percent(health["zero_share"])],
        ["rows without a number", f"{health['non_finite']:,}"],
        ["mean", f"{health['mean']:.4f}"],
    ]
    if "raw_mean" in health:
        rows.append(["mean ratio before scaling (1 at the optimum)", f"{health['raw_mean']:.4f}"])
    rows.append(["Pareto k of the tail", "flat" if k is None else f"{k:.2f}"])
    if "lorenz" in view:
        rows.append(["Gini index", f"{view['lorenz']['gini']:.3f}"])
    if "flow_residual" in health:
        rows.append(["Bellman-flow residual (0 is exact)", f"{health['flow_residual']:.3f}"])
    if "held_out_objective" in health:
        rows.append(["held-out objective", f"{health['held_out_objective']:.4f}"])
    rows += [[f"quantile {q}", f"{value:.3g}"] for q, value in health["quantiles"].items()]
    return Table("health", ["", ""], rows)


def verdict_lines(verdict: dict[str, Any]) -> list[str]:
    """The colour, what was found, and what to try."""
    level = verdict["level"]
    assert level in LEVELS
    lines = [f"[bold {level}]● {level}: {WORDS[level]}[/]"]
    for remedy, found in itertools.groupby(verdict["findings"], key=lambda finding: finding["remedy"]):
        lines += [f"  [{finding['level']}]●[/] {escape(finding['text'])}" for finding in found]
        lines.append(f"    [dim]try:[/] {escape(remedy)}")
    return lines


def _by_source(health: dict[str, Any]) -> Table:
    rows = [
        [label, f"{entry['rows']:,}", f"{entry['mean']:.4g}", percent(entry["share"])]
        for label, entry in health["by_source"].items()
    ]
    return Table(f"by source ({NEVER})", ["source", "rows", "mean weight", "share of weight"], rows)


def _expert(expert: dict[str, Any]) -> Block:
    if "absent" in expert:
        return [f"[dim]expert against the rest:[/] {escape(expert['absent'])}"]
    ratio = expert["ratio_of_means"]
    rows = [
        ["share of weight", f"{percent(expert['share'])} (share of rows {percent(expert['base_rate'])})"],
        ["mean weight", f"{expert['mean']:.4g} (rest {expert['mean_rest']:.4g})"],
        ["ratio of means", "infinite" if ratio is None else f"{ratio:.3g}"],
        ["AUROC (0.5 is chance)", f"{expert['auroc']:.3f}"],
    ]
    return Table(f"{expert['name']} ({expert['how']}) against the rest: {NEVER}", ["", ""], rows)


def _histogram(histogram: dict[str, Any]) -> list[str]:
    edges = histogram["log10_edges"]
    lines = ["[italic]log10 of the weights, share of each group's rows[/]"]
    for label, entry in histogram["groups"].items():
        counts = entry["counts"]
        total = sum(counts) + entry["zero"] + entry["below"]
        if not total:
            continue
        most = max([*counts, entry["zero"], entry["below"], 1])
        lines.append(f"  [bold]{escape(label)}[/]")
        if entry["zero"]:
            lines.append(_bar_line("exactly 0", entry["zero"], most, total))
        if entry["below"]:
            lines.append(_bar_line(f"below {edges[0]:.2f}", entry["below"], most, total))
        filled = [i for i, count in enumerate(counts) if count]
        for i in range(filled[0], filled[-1] + 1) if filled else ():
            lines.append(_bar_line(f"{edges[i]:6.2f} to {edges[i + 1]:6.2f}", counts[i], most, total))
    return lines


def _bar_line(name: str, count: int, most: int, total: int) -> str:
    return f"  {name:>18}  [cyan]{bar(count / most):<{BAR}}[/] {percent(count / total)}"


def _trajectories(found: dict[str, Any]) -> Table:
    def row(entry: dict[str, Any]) -> list[str]:
        figures = [f"{entry['return']:.4g}", f"{entry['length']:,}", f"{entry['mean_weight']:.4g}"]
        return [str(entry["id"]), entry["source"], *figures, percent(entry["share"])]

    rows = [row(entry) for entry in found["top"]]
    bottom = [entry for entry in found["bottom"] if entry not in found["top"]]
    if bottom:
        rows += [["…", "", "", "", "", ""], *(row(entry) for entry in bottom)]
    columns = ["trajectory", "source", "return", "length", "mean weight", "share"]
    return Table(f"heaviest and lightest of {found['count']:,} trajectories", columns, rows)


def _what_if(found: dict[str, Any]) -> list[Block]:
    shown: list[Block] = []
    if found["clip"]:
        rows = [
            [f"{e['cap']:g}", percent(e["effective_share"]), percent(e["largest_share"]), percent(e["clipped"])]
            for e in found["clip"]
        ]
        columns = ["clipped at (x mean)", "effective sample", "largest row", "rows clipped"]
        shown.append(Table("what if, without training again: clip the weights", columns, rows))
    rows = [
        [f"{e['temperature']:g}", percent(e["effective_share"]), percent(e["largest_share"])]
        for e in found["temperature"]
    ]
    shown.append(Table("... or flatten them, w^(1/T)", ["T", "effective sample", "largest row"], rows))
    return shown


def _trajectory(found: dict[str, Any]) -> Table:
    names = [name for name in ("weight", "R", "V", "residual", "task_reward") if name in found]
    steps = len(found["t"])
    top = max(found["weight"]) or 1.0
    every = max(1, -(-steps // 40))  # forty lines at most
    rows = []
    for i in range(0, steps, every):
        figures = [f"{found[name][i]:.4g}" for name in names]
        rows.append([str(found["t"][i]), *figures, f"{bar(found['weight'][i] / top, 16):<16}"])
    thinned = f", every {every}th step" if every > 1 else ""
    title = f"trajectory {found['id']}, {steps:,} steps{thinned}"
    return Table(title, ["t", *(name.replace("_", " ") for name in names), "weight"], rows)


def _compare(found: dict[str, Any]) -> Table:
    rho = found["spearman"]
    rows = [["Spearman rank correlation", "undefined" if rho is None else f"{rho:.3f}"]]
    rows += [[f"{name} heaviest rows in common", percent(share)] for name, share in found["overlap"].items()]
    rows.append(["weight in common", percent(found["shared_weight"])])
    rows += [[f"setting {name}", f"{a} | {b}"] for name, (a, b) in found["settings"].items()]
    return Table(f"compared with {found['with']}", ["", ""], rows)


# --- the others ------------------------------------------------------------------------------------------------------


def _deviation(entry: dict[str, float]) -> str:
    return f"{entry['mean']:.3g} ± {entry['std']:.3g}"


def _range(entry: dict[str, float]) -> str:
    return f"{entry['mean']:.4g} ({entry['min']:.4g} to {entry['max']:.4g})"


def _dataset(view: dict[str, Any]) -> list[Block]:
    sources = [
        [
            s["source"],
            f"{s['episodes']:,}",
            f"{s['rows']:,}",
            _range(s["length"]),
            _range(s["return"]),
            percent(s["ended_by_task"]),
        ]
        for s in view["sources"]
    ]
    columns = ["source", "episodes", "rows", "length", "return", "ended by the task"]
    states = []
    for s in view["states"]:
        expert = f"{s['expert_mean']:.3g} ({s['expert_min']:.3g} to {s['expert_max']:.3g})" if "expert_min" in s else ""
        states.append([str(s["dim"]), f"{s['mean']:.3g} ± {s['std']:.3g}", f"{s['min']:.3g} to {s['max']:.3g}", expert])
    actions = [
        [str(a["dim"]), _deviation(a), f"{a['min']:.3g} to {a['max']:.3g}", percent(a["at_limit"])]
        for a in view["actions"]
    ]
    title = f"states: {view['metrics']['rows']:,} offline, {view['expert_states']:,} of the expert"
    return [
        Table("actions", ["action", "mean ± deviation", "range", "at the limit"], actions),
        Table(title, ["dimension", "mean ± deviation", "range", "expert"], states),
        Table("sources", columns, sources),
    ]


def _disc(view: dict[str, Any]) -> list[Block]:
    if "reward" not in view:
        return []
    found = view["reward"]
    rows = [
        [
            name,
            f"{g['states']:,}",
            _deviation(g),
            f"{g['min']:.3g} to {g['max']:.3g}",
            percent(g["saturated"]),
        ]
        for name, g in found["groups"].items()
    ]
    columns = ["R(s) on", "states", "mean ± deviation", "range", "saturated"]
    figures = [["AUC, expert against offline states, those it was trained on", f"{found['auc']:.3f}"]]
    if "held_out_auc" in found:
        figures.append(["AUC on states held out of training", f"{found['held_out_auc']:.3f}"])
    if "label" in found:
        figures.append(
            [f"AUC, offline rows: {found['label']['name']} against the rest", f"{found['label']['auc']:.3f}"]
        )
    return [
        _shares("R(s)", found["histogram"]),
        Table("reward", columns, rows),
        Table("tells apart", ["", ""], figures),
    ]


def _shares(title: str, histogram: dict[str, Any]) -> list[str]:
    edges, lines = histogram["edges"], [f"[italic]{escape(title)}, share of each group[/]"]
    for name, shares in histogram["shares"].items():
        lines.append(f"  [bold]{escape(name)}[/]")
        pairs = [sum(shares[i : i + 2]) for i in range(0, len(shares), 2)]  # of bins: a dozen lines at most
        filled = [i for i, pair in enumerate(pairs) if pair]
        for i in range(filled[0], filled[-1] + 1):
            name = f"{edges[2 * i]:6.2f} to {edges[min(2 * i + 2, len(shares))]:6.2f}"
            lines.append(f"  {name:>18}  [cyan]{bar(pairs[i] / max(pairs)):<{BAR}}[/] {percent(pairs[i])}")
    return lines


def _value(view: dict[str, Any]) -> list[Block]:
    if "value" not in view:
        return [[f"[yellow]{escape(view['without_value'])}[/]"]]
    means = {name: entry["fifths"] for name, entry in view["value"].items()}
    rows = [[name, *("" if mean is None else f"{mean:.4g}" for mean in fifths)] for name, fifths in means.items()]
    columns = ["mean V", "first fifth", "second", "third", "fourth", "last fifth"]
    return [Table("V along the trajectories", columns, rows)]


def _policy(view: dict[str, Any]) -> list[Block]:
    told = view["metrics"].get("evaluation", {})  # of an expert, sampled as the data are
    figures = [[name.replace("_", " "), short(value)] for name, value in told.items()]
    found: list[Block] = [Table("return of sampled episodes", ["", ""], figures)] if told else []
    if "actions" not in view:
        return found
    rows = []
    for a in view["actions"]:
        pair = [_deviation(a[who]) for who in ("data", "policy")]
        limits = " | ".join(percent(a[who]["at_limit"]) for who in ("data", "policy"))
        explained = "" if a["explained"] is None else percent(a["explained"])
        rows.append([str(a["dim"]), *pair, limits, f"{a['squared_error']:.3g}", explained])
    data = "weighted data" if view["weighted"] else "data"
    columns = ["action", data, "policy", "at the limit (data | policy)", "squared error", "explained"]
    return [*found, Table(f"actions on the {data}", columns, rows)]


def _eval(view: dict[str, Any]) -> list[Block]:
    episodes, score = view["episodes"], view["score"]
    rows = [
        ["episodes", f"{episodes['count']:,}"],
        ["return", _range(episodes["return"])],
        ["least, quartiles, most", "  ".join(f"{value:.4g}" for value in episodes["quantiles"].values())],
        ["length", _range(episodes["length"])],
        *[[f"ended: {name}", f"{count:,}"] for name, count in episodes["ended"].items()],
        *[[name.replace("_", " "), short(value)] for name, value in score.items() if isinstance(value, float)],
    ]
    if view.get("steady"):
        rows.append(["last third of training within 10 % of its end", view["steady"]])
    return [Table("scores", ["", ""], rows)]
