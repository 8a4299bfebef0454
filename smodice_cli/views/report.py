"""report: finished runs as one self-contained page: results beside the paper's, curves, weights, how to reproduce."""

from __future__ import annotations

import shlex
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
from smodice_cli.errors import SmodiceError, UsageError
from smodice_cli.lazy import np
from smodice_cli.stages import DEFAULT, chain, flag_of, maker
from smodice_cli.views import aggregate, describe, open_artifact, paper, view_of
from smodice_cli.views.diagnostics import LEVELS
from smodice_cli.views.opened import Facts, Records, Request, curve, read_log
from smodice_cli.views.plots import calm
from smodice_cli.views.render import html, output, png
from smodice_cli.views.render.html import Cell
from smodice_cli.views.render.terminal import columns, percent, records
from smodice_cli.views.render.theme import Panel, band
from smodice_cli.views.runs import Run, Seed, collect, own_stages, shared_kinds, training_seconds
from smodice_cli.views.scores import (
    Line,
    orders_of,
    over_seeds,
    reference_scores,
    returns_panel,
    steady,
    worst_deviation,
)
from smodice_cli.views.weights import summary

RESULTS = [
    "run",
    "method",
    "unfinished",
    "score",
    "action error",
    "steady",
    "paper",
    "task",
    "seeds",
    "success",
    "weights",
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
        "weights": run.verdicts,
        "seconds": float(np.mean(seconds)) if seconds else 0.0,
        **({"success_rate": float(np.mean(success))} if success else {}),
        **({"action_error": float(np.mean(errors))} if errors else {}),
        "worst_deviation": deviation,
        "steady": steady(deviation),
        "per_seed": {str(seed.number): (seed.score or {}).get("normalized") for seed in run.seeds},
        "unfinished": {str(seed.number): seed.unfinished for seed in run.seeds if seed.unfinished},
    }


def score_in_words(found: Facts) -> str:
    """A result's score for a line: normalized or, of recordings, the error of the actions; '' where there is none."""
    if found["score"] is not None:
        return f"{found['score']:.1f}"
    return f"error {found['action_error']:.3f}" if "action_error" in found else ""


def spread_of(run: Run, kind: str, name: str) -> Line | None:
    """A logged figure over the seeds: mean and interval at the steps that all of them logged."""
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


def report(
    folders: Sequence[Path],
    page: Path | None,
    picture: Path | None = None,
    chosen: str = "",
    table: Path | None = None,
    force: bool = False,
) -> tuple[Facts, list[Path]]:
    """Write the page, the picture and the tables that were asked for; returns the results as data, and the files."""
    runs = collect(folders)
    results, over_tasks = [result(run) for run in runs], aggregate.aggregate(runs)
    returns, origin = returns_panels(runs), ", ".join(map(str, folders))
    written = []
    if picture:
        drawn = [*returns, *(aggregate.panels(over_tasks, aggregate.colours(runs)) if over_tasks else [])]
        if not drawn:
            if any("action_error" in found for found in results):
                hint = "smodice inspect WEIGHTS --png draws what the weights chose"
                raise UsageError("--png draws scores in a simulator, and these runs are scored on recordings", hint)
            if any(found["score"] is not None for found in results):
                hint = "--set eval.curve_episodes=10 scores the policy over training as well"
                raise UsageError("--png draws scores over training or of several methods, and there is one score", hint)
            raise UsageError("there are no scores to draw yet", "smodice status RUN says how far the runs are")
        written.append(png.save(picture, png.pick(drawn, chosen), f"{len(runs)} run{'s' * (len(runs) > 1)}", [origin]))
    if table:
        plain = [{k: v for k, v in found.items() if not isinstance(v, dict | list)} for found in results]
        flat = [{**row, "seeds": len(found["seeds"])} for row, found in zip(plain, results, strict=True)]
        tables = {".csv": flat, **(aggregate.tables(over_tasks) if over_tasks else {})}
        written += output.write_tables(table, tables, origin, force)
    if page:
        written.insert(0, _page(page, runs, results, returns, over_tasks))
    sizes = {"html": str(page), "bytes": page.stat().st_size} if page else {}
    return {**sizes, "runs": results, "over_tasks": over_tasks}, written


def _page(path: Path, runs: list[Run], results: Records, returns: list[Panel], over_tasks: Facts | None) -> Path:
    with console.progress("report", len(runs)) as bar:

        def sections() -> Iterator[Facts]:
            """Each run's part of the page, made when the page comes to it."""
            for number, run in enumerate(runs, 1):
                tables = {"seeds": _seeds(run), "orders": _orders(run)}
                yield {"run": run, "commands": commands(run), **tables, **_weights(run)}
                bar.update(number)

        content: Facts = {"data": _data(runs), "results": _results(results), "versions": _versions(runs)}
        content |= {"returns": returns, "over_tasks": _over_tasks(over_tasks, runs), "sections": sections()}
        return html.save(path, "report.html", title="SMODICE report", count=len(runs), **content)


def _versions(runs: list[Run]) -> str:
    found: dict[str, set[str]] = {}
    for header in (header for run in runs for seed in run.seeds for header in seed.headers.values()):
        for name, version in header.versions.items():
            found.setdefault(name, set()).add(version)
    return ", ".join(f"{name} {' / '.join(sorted(versions))}" for name, versions in sorted(found.items()))


def _data(runs: list[Run]) -> list[list[Cell]]:
    """A line for each folder of runs and its data."""
    rows: list[list[Cell]] = []
    for run in {(run.name, run.task): run for run in runs}.values():
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
                found["method"],
                "; ".join(f"seed {number}: {how}" for number, how in found["unfinished"].items()),
                _cell(found["score"], ("{:.1f}" + spread).format),
                _cell(found.get("action_error"), "{:.3f}".format),
                "" if deviation is None else (found["steady"], deviation),
                said if paper_score is None else (said, paper_score),
                f"{found['task']} ({found['problem']})" if found["problem"] else found["task"],
                _cell(len(found["seeds"]), str),
                _cell(found.get("success_rate"), lambda rate: f"{100 * rate:.0f} %"),
                found["weights"],
                _cell(found["effective_share"], percent),
                _cell(found["seconds"], lambda seconds: f"{seconds / 60:.1f}"),
            ]
        )
    kept = [index for index in range(len(RESULTS)) if any(row[index] != "" for row in rows)]
    return {"columns": [RESULTS[i] for i in kept], "rows": [[row[i] for i in kept] for row in rows]}


def _over_tasks(found: Facts | None, runs: list[Run]) -> Facts | None:
    """The methods over all tasks and seeds as a page shows them."""
    if found is None:
        return None
    table = records("", columns("methods"), aggregate.rows(found))
    shown = {"columns": table.columns, "rows": table.rows, "panels": aggregate.panels(found, aggregate.colours(runs))}
    return shown | {"chances": aggregate.chances(found), "tasks": found["tasks"]}


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


def _orders(run: Run) -> list[list[Cell]]:
    """Which tasks the episodes of each seed completed, in their order; nothing where there is one task."""
    return [
        [str(seed.number), one["order"], (percent(one["share"]), one["share"]), ", ".join(map(str, one["numbers"]))]
        for seed in run.seeds
        for one in orders_of(seed.scores.get("per_episode", []))
    ]


def _weights(run: Run) -> Facts:
    """The run's pictures, and the verdict on the weights of the seed whose are worst, or why there is none."""
    found: Facts = {"verdict": None, "summary": "", "remark": "", "panels": [p] if (p := curves_panel(run)) else []}
    weighed = [seed for seed in run.seeds if "weights" in seed.places]
    if not weighed:
        return found
    worst = max(weighed, key=lambda seed: LEVELS.index(seed.verdict))
    path = worst.places["weights"]
    try:
        opened = open_artifact(path)
        facts = describe(opened)
        drawn = view_of(opened.kind).panels(opened, facts, Request())
    except SmodiceError as error:
        return found | {"remark": error.message}
    panels = [*found["panels"], *(panel for panel in drawn if panel.key in SHOWN_PANELS)]
    remark = f"Without its dataset: {opened.missing}" if opened.missing else ""
    told = [f"seed {worst.number}"] if len(weighed) > 1 else []
    summed = "; ".join([*told, *summary(facts)])
    return {"verdict": facts["verdict"], "summary": summed, "remark": remark, "panels": panels}


def returns_panels(runs: list[Run]) -> list[Panel]:
    """One picture for each task, with one panel for each method."""
    tasks: dict[str, list[tuple[str, Run, Line]]] = {}
    for name, run in zip(aggregate.names(runs), runs, strict=True):
        if line := returns_of(run):
            tasks.setdefault(run.task, []).append((name, run, line))
    titles = {task: _title(found[0][1]) for task, found in tasks.items()}
    panels, colours = [], aggregate.colours(runs)
    for task, found in tasks.items():
        alone = list(titles.values()).count(titles[task]) == 1
        title = titles[task] if alone else f"{titles[task]}, {found[0][1].name}"
        lines = {name: line for name, _, line in found}
        levels = {name: _levels(run) for name, run, _ in found}
        seeds = max(len(run.seeds) for _, run, _ in found)
        how = f"mean over up to {seeds} seeds, the band is its 95 % interval" if seeds > 1 else "one seed"
        shown = (title, "normalized score", lines, levels, how, colours)
        panels.append(returns_panel(*shown, wide=len(tasks) == 1))
    return panels


def _title(run: Run) -> str:
    return f"{run.env} ({run.problem})" if run.problem else run.env


def _levels(run: Run) -> dict[str, float]:
    """What a run's scores are compared with: random, the data's expert, the paper."""
    score = next((seed.score for seed in run.seeds if seed.score), {})
    _, printed = paper.score(run.env, run.problem, run.algo)
    return reference_scores(run.env, score) | ({} if printed is None else {"paper": printed})


def curves_panel(run: Run) -> Panel | None:
    """What the stages logged, mean over seeds with its interval."""
    logged = [(stage.kind, name, title) for stage in own_stages() for name, title in stage.curves]
    lines = {title: line for kind, name, title in logged if (line := spread_of(run, kind, name))}
    found, seeds = dict(list(lines.items())[:MOST_CURVES]), len(run.seeds)
    how = f"Mean over {seeds} seeds; the band is its 95 % interval." if seeds > 1 else "One seed."
    return Panel("curves", "Learning curves", how, draw_curves, (found, seeds > 1), wide=True) if found else None


def draw_curves(figure: Any, found: dict[str, Line], with_legend: bool) -> None:
    """Figures side by side."""
    axes = np.atleast_1d(figure.subplots(1, len(found)))
    for index, (one, (title, line)) in enumerate(zip(axes, found.items(), strict=True)):
        one.set(xlabel="step", title=title)
        band(one, "steps", line, f"C{index}", "mean")
        calm(one, line["mean"], line)
        one.locator_params(axis="x", nbins=4)
        one.ticklabel_format(useOffset=False)
    if with_legend:
        axes[0].legend()
