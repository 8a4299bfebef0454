"""weights: their health in words, and what they chose: by label, by trajectory, by place, along time, and what if."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from smodice_cli import artifacts
from smodice_cli.console import escape
from smodice_cli.errors import InputError, UsageError
from smodice_cli.lazy import np
from smodice_cli.stages import maker
from smodice_cli.views import Block, Facts, Opened, Panel, Records, Request, Table, View, choice, figures, records
from smodice_cli.views.audit import audit
from smodice_cli.views.diagnostics import WORDS, findings, flow_residual, verdict, weight_health
from smodice_cli.views.opened import NEED_DATASET
from smodice_cli.views.plots import profile
from smodice_cli.views.render.terminal import bar, between, columns, histogram, percent
from smodice_cli.views.value import ON_SEGMENTS
from smodice_cli.views.weight_pictures import panels

AUDITED_ROWS = 200_000  # up to which weights that train-value did not make get a second opinion when they are looked at
NO_LABELS = "no labels: neither the sources, nor rewards, nor a success test of the task tell good episodes from others"
NEVER = "labels serve this view only; they never reach training"
SHOWN_BRANCH = 0.01  # share of all weight on a branch that is worth a line
SETTINGS = ("estimator", "f", "gamma", "alpha", "cap", "n_step", "steps")  # that a picture names


class WeightsView(View):
    """How healthy the weights are and what they chose."""

    lost = ", ".join(NEED_DATASET)
    logged = ON_SEGMENTS

    def check(self, opened: Opened, request: Request) -> None:
        pass

    def log_path(self, path: Path) -> Path:
        """The weights share V's: value.log.jsonl lies beside weights.h5, x.log.jsonl beside x.weights.h5."""
        usual, made = maker("weights").companions["weights"], Path(maker("weights").file)
        stem = made.stem if path.name == usual else path.name.removesuffix(f".{usual}")
        return path.with_name(f"{stem}.log.jsonl")

    def figures(self, opened: Opened, request: Request) -> Facts:
        header, arrays = opened.artifact.header, opened.artifact.arrays
        w = choice.usable(arrays["w"])
        equal = choice.on_equal_rows(w, np.asarray(arrays["t"]), header.config) if w.any() else None
        health = _health(opened, w if equal is None else equal)
        found = findings(health, header.config)
        listed = [finding._asdict() for finding in found]
        facts: Facts = {"health": health, "verdict": {"level": verdict(found), "findings": listed}}
        if not w.any():
            return facts
        facts |= _chosen(opened, request, w, equal)
        if request.trajectory is not None:
            count = int(np.max(arrays["episode"])) + 1
            if not 0 <= request.trajectory < count:
                raise UsageError(f"--trajectory {request.trajectory}: the data hold trajectories 0 to {count - 1}")
            along = choice.along_time(arrays, request.trajectory, opened.dataset)
            facts["trajectory"] = {"id": request.trajectory, **along}
        return facts | ({"compare": compare(opened, request.compare)} if request.compare else {})

    def blocks(self, facts: Facts) -> list[Block]:
        writers = (
            ("histogram", _histogram),
            ("trajectories", _trajectories),
            ("branches", _branches),
            ("what_if", _clipped),
            ("what_if", _flattened),
            ("trajectory", _trajectory),
            ("compare", _compare),
            ("health", _by_source),
            ("health", _match),
            ("expert", _expert),
        )
        shown = [block for name, write in writers if name in facts and (block := write(facts[name]))]
        return [*shown, _card(facts), _verdict(facts["verdict"])]

    def heading(self, facts: Facts) -> list[str]:
        settings = "  ".join(f"{name} {facts['config'][name]}" for name in SETTINGS if name in facts["config"])
        first, *more = summary(facts)
        made = f"{settings}   ·   seed {facts['seed']}   ·   digest {facts['digest'][:12]}"
        return [made, f"{facts['verdict']['level'].upper()} · {first}", *more]

    def panels(self, opened: Opened, facts: Facts, request: Request) -> list[Panel]:
        return panels(opened, facts, request)

    def tables(self, opened: Opened, facts: Facts) -> dict[str, Records]:
        if "trajectory" in facts:
            _, *names = facts["trajectory"]  # without the id
            rows = zip(*(facts["trajectory"][name] for name in names), strict=True)
            return {".csv": [dict(zip(names, row, strict=True)) for row in rows]}
        if opened.dataset:
            return {".csv": choice.trajectories(choice.usable(opened.artifact.arrays["w"]), opened.dataset)}
        return super().tables(opened, facts)


# --- numbers ---------------------------------------------------------------------------------------------------------


def summary(facts: Facts) -> list[str]:
    """The card in a line, and what the labels say in another."""
    health = facts["health"]
    sample = f"effective sample {percent(health['effective_share'])} of {health['rows']:,} rows"
    tail = "" if health["pareto_k"] is None else f" · Pareto k {health['pareto_k']:.2f}"
    trust = f"trust {percent(health['audit']['trust'])} · " if "trust" in health.get("audit", {}) else ""
    lines = [f"{trust}{sample} · largest row {percent(health['largest_share'])}{tail}"]
    if "auroc" in (expert := facts.get("expert", {})):
        share = f"{percent(expert['share'])} of the weight on {percent(expert['base_rate'])} of the rows"
        lines.append(f"{expert['name']}: {share}, AUROC {expert['auroc']:.3f} (labels never reach training)")
    return lines


def compare(opened: Opened, other: Path) -> dict[str, Any]:
    """These weights against others of the same dataset."""
    first, second = opened.artifact, artifacts.load(other, "weights")
    links = [found.header.inputs.get("dataset") for found in (first, second)]
    mine, theirs = (link.digest if link else "none" for link in links)
    if mine == "none" or mine != theirs:
        raise InputError(
            f"{other} weighs another dataset (digest {theirs[:12]}) than {first.path} (digest {mine[:12]}): "
            "row by row they have nothing in common",
            "compare weights of one dataset, e.g. two values of --f with the same build-dataset output",
        )
    old, new = first.header.config, second.header.config
    names = [name for name in sorted({*old, *new}) if old.get(name) != new.get(name)]
    changed = {name: [old.get(name), new.get(name)] for name in names}
    if first.header.seed != second.header.seed:
        changed["seed"] = [first.header.seed, second.header.seed]
    both = (choice.usable(found.arrays["w"]) for found in (first, second))
    return {"with": str(other), "settings": changed, **choice.compare(*both)}


def _health(opened: Opened, equal: np.ndarray) -> dict[str, Any]:
    """The health card: of the weights now, and what the stage recorded; `equal` are those on rows that count alike."""
    header, arrays = opened.artifact.header, opened.artifact.arrays
    health = weight_health(np.asarray(arrays["w"]), np.asarray(arrays["source"]), opened.labels)
    recorded = ("raw_mean", "held_out_objective", "flow_residual", "audit", "auc")
    health |= {name: header.metrics[name] for name in recorded if name in header.metrics}
    if opened.dataset and equal.any() and not health["non_finite"]:
        gamma = header.config.get("gamma", 0.99)
        health["flow_residual"] = flow_residual(opened.dataset, equal, gamma)
        if "trust" not in health.get("audit", {}) and opened.dataset.rows <= AUDITED_ROWS:
            health["audit"] = audit(opened.dataset, choice.usable(arrays["w"]), gamma)
    return health


def _chosen(opened: Opened, request: Request, w: np.ndarray, equal: np.ndarray | None) -> Facts:
    """What the weights chose."""
    dataset, chosen, t = opened.dataset, choice.chosen_rows(opened.dataset), np.asarray(opened.artifact.arrays["t"])
    groups = choice.groups(np.asarray(opened.artifact.arrays["source"]), opened.labels, chosen)
    facts: Facts = {"histogram": choice.histogram(w, groups), "lorenz": choice.lorenz(w), "what_if": choice.what_if(w)}
    if dataset is None:
        return facts
    facts["expert"] = choice.against_the_rest(w, chosen) if chosen else {"absent": NO_LABELS}
    ordered = choice.trajectories(w, dataset)
    facts["trajectories"] = {"count": len(ordered), "top": ordered[: request.top], "bottom": ordered[-request.top :]}
    if branches := choice.branches(w, dataset):
        facts["branches"] = branches
    parts = choice.parts(chosen, len(w))
    facts["along"] = {name: profile(w[rows], t[rows]) for name, rows in parts.items()}
    if equal is not None and not choice.look_alike(w, equal):
        name, rows = next(iter(parts.items()))
        facts["along"][f"{name}, {choice.EQUAL}"] = profile(equal[rows], t[rows])
    return facts


# --- blocks of a terminal --------------------------------------------------------------------------------------------


def _card(facts: Facts) -> Table:
    health = facts["health"]
    k = health["pareto_k"]
    known = {"tail": "flat" if k is None else f"{k:.2f}", **health}
    known |= {"gini": facts["lorenz"]["gini"]} if "lorenz" in facts else {}
    quantiles = {f"quantile {q}": f"{value:.3g}" for q, value in health["quantiles"].items()}
    return figures("health", columns("health") | quantiles, known)


def _verdict(found: dict[str, Any]) -> list[str]:
    """The colour, what was found, and what to try."""
    level = found["level"]
    lines = [f"[bold {level}]● {level}: {WORDS[level]}[/]"]
    for remedy, same in itertools.groupby(found["findings"], key=lambda finding: finding["remedy"]):
        lines += [f"  [{finding['level']}]●[/] {escape(finding['text'])}" for finding in same]
        lines.append(f"    [dim]try:[/] {escape(remedy)}")
    return lines


def _expert(expert: dict[str, Any]) -> Block:
    if "absent" in expert:
        return [f"[dim]expert against the rest:[/] {escape(expert['absent'])}"]
    ratio = expert["ratio_of_means"]
    known = {"ratio": "infinite" if ratio is None else f"{ratio:.3g}", **expert}
    return figures(f"{expert['name']} ({expert['how']}) against the rest: {NEVER}", columns("labelled"), known)


def _histogram(found: dict[str, Any]) -> list[str]:
    edges, groups = found["log10_edges"], {}
    for label, entry in found["groups"].items():
        apart = [("exactly 0", entry["zero"]), (f"below {edges[0]:.2f}", entry["below"])]
        groups[label] = [bar for bar in apart if bar[1]] + between(edges, entry["counts"])
    return histogram("log10 of the weights, share of each group's rows", groups)


def _trajectories(found: dict[str, Any]) -> Table:
    table = records(f"heaviest and lightest of {found['count']:,} trajectories", columns("trajectories"), found["top"])
    bottom = [entry for entry in found["bottom"] if entry not in found["top"]]
    gap = [["…", *("" for _ in table.columns[1:])]] if bottom else []
    return table._replace(rows=[*table.rows, *gap, *records("", columns("trajectories"), bottom).rows])


def _branches(found: list[dict[str, Any]]) -> Table:
    shown = [entry for entry in found if entry["share"] >= SHOWN_BRANCH]
    hidden = f" (of {len(found)} branches those with a hundredth of the weight)" if len(shown) < len(found) else ""
    return records(f"where the rows lead{hidden}: {NEVER}", columns("branches"), shown)


def _clipped(found: dict[str, Any]) -> Table | None:
    title = "what if, without training again: clip the weights"
    return records(title, columns("clipped"), found["clip"]) if found["clip"] else None


def _flattened(found: dict[str, Any]) -> Table:
    return records("... or flatten them, w^(1/T)", columns("flattened"), found["temperature"])


def _by_source(health: dict[str, Any]) -> Table:
    sources = [{"label": label, **entry} for label, entry in health["by_source"].items()]
    return records(f"by source ({NEVER})", columns("by-source"), sources)


def _match(health: dict[str, Any]) -> Table | None:
    if "trust" not in (found := health.get("audit", {})):
        return None
    title = (
        "likeness to the expert by part of the episodes, by a second classifier: all rows, weighted, best trajectories"
    )
    return records(title, columns("match"), found["parts"])


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
