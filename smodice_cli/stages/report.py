"""report: finished runs as one self-contained page: results beside the paper's, curves, weights, how to reproduce."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import fields, replace
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from smodice_cli import __version__, artifacts
from smodice_cli.artifacts import Header
from smodice_cli.config import SECTIONS
from smodice_cli.console import console
from smodice_cli.errors import SmodiceError
from smodice_cli.inspect import figures, output, page, returns, subject, views
from smodice_cli.inspect.terminal import percent
from smodice_cli.inspect.theme import Panel, Theme, band, legend, style
from smodice_cli.methods import METHODS
from smodice_cli.stages import paper
from smodice_cli.stages.pipeline import training_seconds
from smodice_cli.stages.runs import Run, Seed, collect

SHOWN_PANELS = ("histogram", "lorenz", "density", "weight-map", "along")
CURVES = (
    ("disc", "auc", "discriminator: held-out AUC"),
    ("disc", "loss", "discriminator: loss"),
    ("value", "held_out", "value: held-out objective"),
    ("value", "effective_share", "value: effective sample"),
    ("policy", "loss", "policy: loss"),
)
MOST_CURVES = 4


# --- numbers ---------------------------------------------------------------------------------------------------------


def result(run: Run) -> dict[str, Any]:
    """One line of the results: scores over seeds, the paper's beside them, health of the weights, time."""
    scores = [score for seed in run.seeds if (score := seed.score)]
    normalized = np.array([score["normalized"] for score in scores])
    healthy = [seed.headers["weights"].metrics for seed in run.seeds if "weights" in seed.headers]
    trained = [
        next((s.places[kind] for kind in ("policy", "value", "disc") if kind in s.places), None) for s in run.seeds
    ]
    seconds = [training_seconds(path) for path in trained if path]
    text, number = paper.score(run.env, run.problem, run.algo)
    found: dict[str, Any] = {
        "run": run.name,
        "task": run.env,
        "problem": run.problem,
        "method": run.method,
        "seeds": [seed.number for seed in run.seeds],
        "score": float(normalized.mean()) if len(normalized) else None,
        "score_std": float(normalized.std(ddof=1)) if len(normalized) > 1 else None,
        "paper": number,
        "paper_says": text,
        "effective_share": float(np.mean([h["effective_share"] for h in healthy])) if healthy else None,
        "seconds": float(np.mean(seconds)) if seconds else 0.0,
    }
    success = [score["success_rate"] for score in scores if "success_rate" in score]
    if success:
        found["success_rate"] = float(np.mean(success))
    line = returns_of(run)
    found["worst_deviation"] = returns.worst_deviation(line) if line else None
    found["steady"] = returns.steady(found["worst_deviation"])
    found["per_seed"] = {str(seed.number): score["normalized"] if (score := seed.score) else None for seed in run.seeds}
    return found


def spread_of(run: Run, kind: str, name: str) -> returns.Line | None:
    """A logged figure over the seeds: mean, lowest and highest at the steps that all of them logged."""
    found = []
    for seed in run.seeds:
        if kind in seed.places:
            steps, values = subject.curve(subject.read_log(subject.log_path(seed.places[kind], kind)), name)
            if steps:
                found.append(dict(zip(steps, values, strict=True)))
    return returns.over_seeds(found)


def returns_of(run: Run) -> returns.Line | None:
    """The score of the policy's snapshots over the seeds; None where none were scored."""
    lines = [{float(p["step"]): p["normalized"] for p in seed.scores.get("curve") or []} for seed in run.seeds]
    return returns.over_seeds([line for line in lines if line])


def commands(run: Run) -> list[str]:
    """The command lines that make every artifact of the run again."""
    lines = []
    if run.dataset and run.dataset_path:
        config = run.dataset.config
        words = ["smodice", "build-dataset", "--env", config["env"]]
        words += [word for text in config["offline"] for word in ("--offline", text)]
        words += [word for text in config["expert"] for word in ("--expert", text)]
        words += ["--expert-dims", config["expert_dims"]] if config.get("expert_dims") else []
        words += ["--absorbing"] if config.get("absorbing") else []
        words += ["--set", "expert_actions=true"] if config.get("expert_actions") else []
        lines.append(shlex.join([*words, *_seed_flag(run.dataset), "--out", str(run.dataset_path)]))
    before = {"disc": "data", "value": "disc", "policy": METHODS[run.algo].needs, "eval": "policy"}
    for seed in run.seeds:
        places, headers = _with_shared_disc(seed)
        for kind, needed in before.items():
            if kind not in headers:
                continue
            stage = kind if kind == "eval" else f"train-{kind}"
            missing = run.dataset_path or "dataset.h5" if needed == "data" else seed.folder / f"{needed}.safetensors"
            given = places.get(needed, missing)
            words = ["smodice", stage, f"--{needed}", str(given), *_seed_flag(headers[kind])]
            lines.append(shlex.join([*words, *_changed(kind, headers[kind]), "--out", str(places[kind])]))
    return lines


def _with_shared_disc(seed: Seed) -> tuple[dict[str, Path], dict[str, Header]]:
    """The chain's places and headers, also of a discriminator that lies elsewhere."""
    for kind, header in seed.headers.items():
        if "disc" not in seed.headers and "disc" in header.inputs:
            place = artifacts.linked(seed.places[kind], header.inputs["disc"])
            try:
                return seed.places | {"disc": place}, seed.headers | {"disc": artifacts.read_header(place)}
            except SmodiceError:
                break
    return seed.places, seed.headers


def _seed_flag(header: Header) -> list[str]:
    return ["--seed", str(header.seed)] if header.seed else []


def _changed(section: str, header: Header) -> list[str]:
    """Settings that are not this version's defaults, for the algorithm among them."""
    defaults = {field.name: field.default for field in fields(SECTIONS[section])}
    defaults |= METHODS[header.config.get("algo", "smodice")].settings.get(section, {})
    words: list[str] = []
    for name, value in header.config.items():
        if name in defaults and value != defaults[name]:
            text = str(value).lower() if isinstance(value, bool) else str(value)
            words += ["--set", f"{name}={text}"]
    return words


# --- the page --------------------------------------------------------------------------------------------------------


def report(folders: Sequence[Path], html: Path) -> dict[str, Any]:
    """Write the page; returns the results as data."""
    runs = collect(folders)
    results = [result(run) for run in runs]
    names = _names(runs)
    for found, name in zip(results, names, strict=True):
        found["run"] = name
    body = [f"<h1>SMODICE: {len(runs)} run{'s' * (len(runs) > 1)}</h1>", _provenance(runs, names), _results(results)]
    if panels := returns_panels(runs, names):
        body.append(f'<section id="returns"><h2>Return over training</h2>{page.pictures(panels)}</section>')
    with console.progress("report", len(runs)) as bar:
        for number, run in enumerate(runs):
            body.append(_run_section(run, names[number]))
            bar.update(number + 1)
    output.write(html, page.document("SMODICE report", "\n".join(body)))
    return {"html": str(html), "bytes": html.stat().st_size, "runs": results}


def _names(runs: list[Run]) -> list[str]:
    """The folders' names; with their place where two are called the same."""
    places = {run.folder: run.name for run in runs}
    return [str(run.folder) if list(places.values()).count(run.name) > 1 else run.name for run in runs]


def _provenance(runs: list[Run], names: list[str]) -> str:
    versions: dict[str, set[str]] = {}
    for run in runs:
        for seed in run.seeds:
            for header in seed.headers.values():
                for name, version in header.versions.items():
                    versions.setdefault(name, set()).add(version)
    made = ", ".join(f"{name} {' / '.join(sorted(found))}" for name, found in sorted(versions.items()))
    rows: list[list[page.Cell]] = []
    for run, name in zip(runs, names, strict=True):
        if run.dataset:
            size = int(run.dataset.metrics["rows"])
            sources = ", ".join(
                [*run.dataset.config["offline"], *(f"expert {e}" for e in run.dataset.config["expert"])]
            )
            rows.append([name, sources, (f"{size:,}", size), run.dataset.digest[:12]])
        else:
            rows.append([name, "the dataset is not there, or has changed since", "", ""])
    table = page.table(["run", "data", "transitions", "digest"], rows)
    return (
        f'<section id="provenance"><h2>Provenance</h2><p>Page written by smodice {__version__}. Artifacts made with: '
        f"{escape(made)}.</p>{table}</section>"
    )


def _results(results: list[dict[str, Any]]) -> str:
    columns = ["run", "score", "steady", "paper", "task", "method", "seeds", "success", "effective", "minutes"]
    rows: list[list[page.Cell]] = []
    for found in results:
        score: page.Cell = ""
        if found["score"] is not None:
            spread = f" ± {found['score_std']:.1f}" if found["score_std"] is not None else ""
            score = (f"{found['score']:.1f}{spread}", found["score"])
        said: page.Cell = (found["paper_says"], found["paper"]) if found["paper"] is not None else found["paper_says"]
        success, share = found.get("success_rate"), found["effective_share"]
        rows.append(
            [
                found["run"],
                score,
                "" if found["worst_deviation"] is None else (found["steady"], found["worst_deviation"]),
                said,
                f"{found['task']} ({found['problem']})" if found["problem"] else found["task"],
                found["method"],
                (f"{len(found['seeds'])}", len(found["seeds"])),
                "" if success is None else (f"{100 * success:.0f} %", success),
                "" if share is None else (percent(share), share),
                (f"{found['seconds'] / 60:.1f}", found["seconds"]),
            ]
        )
    note = (
        "Scores are normalized: 0 is the random, 100 the expert reference; mean and deviation over seeds. The paper "
        "trains three seeds for a million steps and evaluates ten episodes; it prints most scores as curves only. "
        "Effective: the effective sample of the weights. Steady: does the last third of the return over training stay "
        "within 10 % of its end, and how far it strays at most."
    )
    return f'<section id="results"><h2>Results</h2>{page.table(columns, rows)}<p class="muted">{note}</p></section>'


def _run_section(run: Run, name: str) -> str:
    parts = [f'<section class="run"><h2>{escape(name)}</h2>']
    parts.append(
        f'<p class="muted">{escape(run.env)}, imitation from {escape(run.problem or "?")}; {escape(run.method)}</p>'
    )
    panels = [panel] if (panel := curves_panel(run)) else []
    views_of = next((seed for seed in run.seeds if "weights" in seed.places), None)
    if views_of:
        try:
            opened = subject.open_subject(views_of.places["weights"])
            view = views.describe(opened)
            parts.append(page.verdict(view["verdict"]))
            parts.append(f"<p>{escape('; '.join(figures.summary(view)))}</p>")
            panels += [p for p in figures.panels(opened, view, views.Wish()) if p.key in SHOWN_PANELS]
            if opened.missing:
                parts.append(f'<p class="muted">Without its dataset: {escape(opened.missing)}</p>')
        except SmodiceError as error:
            parts.append(f'<p class="muted">{escape(error.message)}</p>')
    if panels:
        parts.append(page.pictures(panels))
    if len(run.seeds) > 1:
        rows: list[list[page.Cell]] = []
        for seed in run.seeds:
            score, health = seed.score, seed.headers["weights"].metrics if "weights" in seed.headers else {}
            share = health.get("effective_share")
            rows.append(
                [
                    str(seed.number),
                    (f"{score['normalized']:.1f}", score["normalized"]) if score else "",
                    (f"{score['mean_return']:.2f}", score["mean_return"]) if score else "",
                    (percent(share), share) if share is not None else "",
                ]
            )
        parts.append(f"<h3>Seeds</h3>{page.table(['seed', 'score', 'return', 'effective sample'], rows)}")
    lines = escape("\n".join(commands(run)))
    parts.append(f"<details><summary>Commands that make it again</summary><pre>{lines}</pre></details></section>")
    return "\n".join(parts)


def returns_panels(runs: list[Run], names: list[str]) -> list[Panel]:
    """One picture for each task, with one line for each method; with the run's name where two runs share a method."""
    tasks: dict[str, list[tuple[Run, str, returns.Line]]] = {}
    for run, name in zip(runs, names, strict=True):
        if line := returns_of(run):
            task = f"{run.env} ({run.problem})" if run.problem else run.env
            tasks.setdefault(task, []).append((run, name, line))
    panels = []
    for task, found in tasks.items():
        methods = [run.method for run, _, _ in found]
        lines = {
            run.method if methods.count(run.method) == 1 else f"{name}, {run.method}": line for run, name, line in found
        }
        seeds = max(len(run.seeds) for run, _, _ in found)
        how = f"mean over up to {seeds} seeds, the band is their range" if seeds > 1 else "one seed"
        panels.append(returns.returns_panel("returns", task, "normalized score", lines, how))
    return panels if len(panels) > 1 else [replace(panel, wide=True) for panel in panels]


def curves_panel(run: Run) -> Panel | None:
    """What the stages logged, mean over seeds with the range between the lowest and the highest."""
    found = [(title, line) for kind, name, title in CURVES if (line := spread_of(run, kind, name))][:MOST_CURVES]
    if not found:
        return None

    def draw(figure: Any, theme: Theme) -> None:
        axes = np.atleast_1d(figure.subplots(1, len(found)))
        for index, (one, (title, line)) in enumerate(zip(axes, found, strict=True)):
            style(one, theme, "step", "", title)
            band(one, "steps", line, theme.series[index], "mean")
            one.locator_params(axis="x", nbins=4)
            one.ticklabel_format(useOffset=False)
        if len(run.seeds) > 1:
            legend(axes[0], theme, loc="best")

    many = f"Mean over {len(run.seeds)} seeds; the band is their range." if len(run.seeds) > 1 else "One seed."
    return Panel("curves", "Learning curves", many, draw, wide=True)
