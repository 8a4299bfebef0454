"""report: finished runs as one self-contained page: results beside the paper's, curves, weights, how to reproduce."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

from smodice_cli import artifacts
from smodice_cli.algos import ALGORITHMS
from smodice_cli.artifacts import Header
from smodice_cli.console import console
from smodice_cli.engine import Stage
from smodice_cli.errors import SmodiceError
from smodice_cli.lazy import np
from smodice_cli.stages import DEFAULT, chain, flag_of, maker
from smodice_cli.views import describe, open_artifact, paper, view_of
from smodice_cli.views.opened import Facts, Records, Request, curve, read_log
from smodice_cli.views.render import html
from smodice_cli.views.render.html import Cell
from smodice_cli.views.render.terminal import percent
from smodice_cli.views.render.theme import Panel, band
from smodice_cli.views.runs import Run, Seed, collect, own_stages, shared_kinds, training_seconds
from smodice_cli.views.scores import Line, over_seeds, returns_panel, steady, worst_deviation
from smodice_cli.views.weights import summary

RESULTS = [
    "run",
    "score",
    "action error",
    "steady",
    "paper",
    "task",
    "method",
    "seeds",
    "success",
    "effective",
    "minutes",
]
MOST_CURVES = 4  # of what the stages log
SHOWN_PANELS = ("histogram", "lorenz", "density", "weight-map", "along")  # of the weights


# --- numbers ---------------------------------------------------------------------------------------------------------


def result(run: Run) -> Facts:
    """One line of the results: scores over seeds, the paper's beside them, health of the weights, time."""
    scores = [score for seed in run.seeds if (score := seed.score)]
    normalized = np.array([score["normalized"] for score in scores if "normalized" in score])
    errors = [score["action_error"] for score in scores if "action_error" in score]  # of recordings
    success = [score["success_rate"] for score in scores if "success_rate" in score]
    shares = [share for seed in run.seeds if (share := seed.effective_share) is not None]
    last = [stage.kind for stage in reversed(own_stages()) if not stage.simulates]  # the furthest tells for all before
    trained = [next((seed.places[kind] for kind in last if kind in seed.places), None) for seed in run.seeds]
    seconds = [training_seconds(path) for path in trained if path]
    text, number = paper.score(run.env, run.problem, run.algo)
    line = returns_of(run)
    deviation = worst_deviation(line) if line else None
    return {
        "run": run.name,
        "task": run.env,
        "problem": run.problem,
        "method": run.method,
        "seeds": [seed.number for seed in run.seeds],
        "score": float(normalized.mean()) if len(normalized) else None,
        "score_std": float(normalized.std(ddof=1)) if len(normalized) > 1 else None,
        "paper": number,
        "paper_says": text,
        "effective_share": float(np.mean(shares)) if shares else None,
        "seconds": float(np.mean(seconds)) if seconds else 0.0,
        **({"success_rate": float(np.mean(success))} if success else {}),
        **({"action_error": float(np.mean(errors))} if errors else {}),
        "worst_deviation": deviation,
        "steady": steady(deviation),
        "per_seed": {str(seed.number): (seed.score or {}).get("normalized") for seed in run.seeds},
    }


def spread_of(run: Run, kind: str, name: str) -> Line | None:
    """A logged figure over the seeds: mean, lowest and highest at the steps that all of them logged."""
    places = [seed.places[kind] for seed in run.seeds if kind in seed.places]
    found = [curve(read_log(view_of(kind).log_path(path)), name) for path in places]
    return over_seeds([dict(zip(steps, values, strict=True)) for steps, values in found if steps])


def returns_of(run: Run) -> Line | None:
    """The score of the policy's snapshots over the seeds; None where none were scored."""
    lines = [{float(p["step"]): p["normalized"] for p in seed.scores.get("curve") or []} for seed in run.seeds]
    return over_seeds([line for line in lines if line])


# --- commands --------------------------------------------------------------------------------------------------------


def commands(run: Run) -> list[str]:
    """The command lines that make every artifact of the run again."""
    lines = []
    if run.dataset and run.dataset_path:
        lines.append(_command(maker("dataset"), run.dataset, [], run.dataset_path))
    for seed in run.seeds:
        places, headers = _with_shared(seed)
        for stage in chain(run.algo):
            if stage.kind in headers:
                needed = stage.starts_from(run.algo)
                usual = run.dataset_path or Path(maker(needed).file) if maker(needed).per_run else None
                start = places.get(needed) or usual or seed.folder / maker(needed).file
                given = [f"--{flag_of(needed)}", str(start)]
                lines.append(_command(stage, headers[stage.kind], given, places[stage.kind]))
    return lines


def _command(stage: Stage, header: Header, given: list[str], out: Path) -> str:
    """The command that makes this artifact: settings where they are not this version's defaults."""
    algo = header.config.get("algo", DEFAULT)
    cls = stage.config_of(algo)
    usual = {f.name: f.default for f in fields(cls)} | ALGORITHMS[algo].defaults.get(stage.section, {})
    words = ["smodice", stage.name, *given, *(["--algo", algo] if algo != DEFAULT else [])]
    words += ["--seed", str(header.seed)] if header.seed else []
    for f in fields(cls):
        value = header.config.get(f.name, usual[f.name])
        if f.name == "algo" or value in (usual[f.name], []):
            continue
        if isinstance(value, list):
            words += [word for item in value for word in (f.metadata["flag"], item)]
        else:
            words += ["--set", f"{f.name}={str(value).lower() if isinstance(value, bool) else value}"]
    return shlex.join([*words, "--out", str(out)])


def _with_shared(seed: Seed) -> tuple[dict[str, Path], dict[str, Header]]:
    """The chain's places and headers, also of what it shares with another method and lies there."""
    places, headers = dict(seed.places), dict(seed.headers)
    for kind in shared_kinds() - set(headers):
        linked = [(seed.places[k], h.inputs[kind]) for k, h in seed.headers.items() if kind in h.inputs]
        for path, link in linked[:1]:
            place = artifacts.linked(path, link)
            with suppress(SmodiceError):
                headers[kind] = artifacts.read_header(place)
                places[kind] = place
    return places, headers


# --- the page --------------------------------------------------------------------------------------------------------


def report(folders: Sequence[Path], page: Path) -> Facts:
    """Write the page; returns the results as data."""
    runs = collect(folders)
    results = [result(run) for run in runs]
    with console.progress("report", len(runs)) as bar:

        def sections() -> Iterator[Facts]:
            """Each run's part of the page, made when the page comes to it."""
            for number, run in enumerate(runs, 1):
                yield {"run": run, "commands": commands(run), "seeds": _seeds(run), **_weights(run)}
                bar.update(number)

        content: Facts = {"data": _data(runs), "results": _results(results), "versions": _versions(runs)}
        content |= {"returns": returns_panels(runs), "sections": sections()}
        html.save(page, "report.html", title="SMODICE report", count=len(runs), **content)
    return {"html": str(page), "bytes": page.stat().st_size, "runs": results}


def _versions(runs: list[Run]) -> str:
    found: dict[str, set[str]] = {}
    for header in (header for run in runs for seed in run.seeds for header in seed.headers.values()):
        for name, version in header.versions.items():
            found.setdefault(name, set()).add(version)
    return ", ".join(f"{name} {' / '.join(sorted(versions))}" for name, versions in sorted(found.items()))


def _data(runs: list[Run]) -> list[list[Cell]]:
    rows: list[list[Cell]] = []
    for run in runs:
        if run.dataset:
            config, size = run.dataset.config, int(run.dataset.metrics["rows"])
            sources = ", ".join([*config["offline"], *(f"expert {text}" for text in config["expert"])])
            rows.append([run.name, sources, (f"{size:,}", size), run.dataset.digest[:12]])
        else:
            rows.append([run.name, "the dataset is not there, or has changed since", "", ""])
    return rows


def _cell(value: float | None, write: Callable[[float], str]) -> Cell:
    """A number in its own words, which the table still sorts by; nothing where there is none."""
    return "" if value is None else (write(value), value)


def _results(results: Records) -> dict[str, list[Any]]:
    """The table of results, without the columns that nobody has anything in."""
    rows: list[list[Cell]] = []
    for found in results:
        spread = f" ± {found['score_std']:.1f}" if found["score_std"] is not None else ""
        said, deviation, paper_score = (found[name] for name in ("paper_says", "worst_deviation", "paper"))
        rows.append(
            [
                found["run"],
                _cell(found["score"], ("{:.1f}" + spread).format),
                _cell(found.get("action_error"), "{:.3f}".format),
                "" if deviation is None else (found["steady"], deviation),
                said if paper_score is None else (said, paper_score),
                f"{found['task']} ({found['problem']})" if found["problem"] else found["task"],
                found["method"],
                _cell(len(found["seeds"]), str),
                _cell(found.get("success_rate"), lambda rate: f"{100 * rate:.0f} %"),
                _cell(found["effective_share"], percent),
                _cell(found["seconds"], lambda seconds: f"{seconds / 60:.1f}"),
            ]
        )
    kept = [index for index in range(len(RESULTS)) if any(row[index] != "" for row in rows)]
    return {"columns": [RESULTS[i] for i in kept], "rows": [[row[i] for i in kept] for row in rows]}


def _seeds(run: Run) -> list[list[Cell]]:
    """A line for each seed where there are several."""
    rows: list[list[Cell]] = []
    for seed in run.seeds if len(run.seeds) > 1 else ():
        score = seed.score or {}
        figure = "{:.1f}" if "normalized" in score else "{:.3f}"
        first = score.get("normalized", score.get("action_error"))
        scores = [_cell(first, figure.format), _cell(score.get("mean_return"), "{:.2f}".format)]
        rows.append([str(seed.number), *scores, _cell(seed.effective_share, percent)])
    return rows


def _weights(run: Run) -> Facts:
    """The run's pictures, and the verdict on the weights of its first seed that has any, or why there is none."""
    found: Facts = {"verdict": None, "summary": "", "remark": "", "panels": [p] if (p := curves_panel(run)) else []}
    path = next((seed.places["weights"] for seed in run.seeds if "weights" in seed.places), None)
    if path is None:
        return found
    try:
        opened = open_artifact(path)
        facts = describe(opened)
        drawn = view_of(opened.kind).panels(opened, facts, Request())
    except SmodiceError as error:
        return found | {"remark": error.message}
    panels = [*found["panels"], *(panel for panel in drawn if panel.key in SHOWN_PANELS)]
    remark = f"Without its dataset: {opened.missing}" if opened.missing else ""
    return {"verdict": facts["verdict"], "summary": "; ".join(summary(facts)), "remark": remark, "panels": panels}


def returns_panels(runs: list[Run]) -> list[Panel]:
    """One picture for each task, with one line for each method; with the run's name where two runs share a method."""
    tasks: dict[str, list[tuple[Run, Line]]] = {}
    for run in runs:
        if line := returns_of(run):
            tasks.setdefault(f"{run.env} ({run.problem})" if run.problem else run.env, []).append((run, line))
    panels = []
    for task, found in tasks.items():
        methods = Counter(run.method for run, _ in found)
        lines = {(f"{run.name}, " if methods[run.method] > 1 else "") + run.method: line for run, line in found}
        seeds = max(len(run.seeds) for run, _ in found)
        how = f"mean over up to {seeds} seeds, the band is their range" if seeds > 1 else "one seed"
        panels.append(returns_panel(task, "normalized score", lines, how, wide=len(tasks) == 1))
    return panels


def curves_panel(run: Run) -> Panel | None:
    """What the stages logged, mean over seeds with the range between the lowest and the highest."""
    logged = [(stage.kind, name, title) for stage in own_stages() for name, title in stage.curves]
    lines = {title: line for kind, name, title in logged if (line := spread_of(run, kind, name))}
    found, seeds = dict(list(lines.items())[:MOST_CURVES]), len(run.seeds)
    how = f"Mean over {seeds} seeds; the band is their range." if seeds > 1 else "One seed."
    return Panel("curves", "Learning curves", how, draw_curves, (found, seeds > 1), wide=True) if found else None


def draw_curves(figure: Any, found: dict[str, Line], with_legend: bool) -> None:
    """Figures side by side."""
    axes = np.atleast_1d(figure.subplots(1, len(found)))
    for index, (one, (title, line)) in enumerate(zip(axes, found.items(), strict=True)):
        one.set(xlabel="step", title=title)
        band(one, "steps", line, f"C{index}", "mean")
        one.locator_params(axis="x", nbins=4)
        one.ticklabel_format(useOffset=False)
    if with_legend:
        axes[0].legend()
