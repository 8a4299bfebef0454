"""Finished runs as tables of docs/, from their summary.json:

    python benchmarks/tables.py ablation RUNS... --out docs/ablation.md          # make ablation
    python benchmarks/tables.py comparison RUNS... --out docs/comparison.md      # make comparison, make sanity
    python benchmarks/tables.py stress RUNS... --out runs/stress.md              # make stress

Beside them the comparison's curves are drawn, and the stress suite's figures. Runs that are not finished are left out.
"""

from __future__ import annotations

import argparse
import json
import tomllib
from pathlib import Path
from typing import Any

import numpy as np

from smodice_cli.views import report, runs
from smodice_cli.views.render import png

VARIANTS = tomllib.loads((Path(__file__).parents[1] / "pipelines" / "ablation.toml").read_text())


def figures(row: dict[str, Any]) -> np.ndarray:
    """Each seed's success where the task has it, otherwise its return, in per cent (of the expert's)."""
    seeds = row["per_seed"].values()
    return np.array([100 * s["success_rate"] if "success_rate" in s else s["of_expert"] for s in seeds])


def name_of(folder: Path) -> str:
    return folder.name.removeprefix("ablation-").removeprefix("comparison-")


def spread(values: np.ndarray) -> str:
    return f"{values.mean():.1f} ± {values.std(ddof=1):.1f}" if len(values) > 1 else f"{values.mean():.1f}"


def change(method: str) -> str:
    """What a variant changes, in the words of the settings."""
    sections = VARIANTS.get(method, {})
    pairs = [f"`{s}.{k} = {json.dumps(v)}`" for s, settings in sections.items() for k, v in settings.items()]
    return ", ".join(pairs) or "nothing: the recipe as shipped"


def seeds_of(summaries: dict[str, dict[str, Any]]) -> str:
    return ",".join(map(str, sorted({seed for summary in summaries.values() for seed in summary["seeds"]})))


def ablation(summaries: dict[str, dict[str, Any]]) -> list[str]:
    """One row for each variant, one column for each task."""
    columns = [{row["method"]: spread(figures(row)) for row in summary["methods"]} for summary in summaries.values()]
    steps = sorted({f"{row['steps']:,}" for summary in summaries.values() for row in summary["methods"]})
    lines = [
        "# Each setting changed alone",
        "",
        f"Made by `make ablation SEEDS={seeds_of(summaries)}`. Success in % (PointMass) or % of the expert's return,",
        f"mean ± standard deviation over the seeds, after {' or '.join(steps)} policy steps.",
        "",
        f"| variant | change | {' | '.join(summaries)} |",
        "|---" * (2 + len(summaries)) + "|",
    ]
    for method in ("smodice", *VARIANTS):
        cells = ["default" if method == "smodice" else method, change(method), *(c.get(method, "") for c in columns)]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def comparison(summaries: dict[str, dict[str, Any]]) -> list[str]:
    """One table: every task's methods, best first, with their steps and training times."""
    lines = [
        "# SMODICE and its baselines",
        "",
        f"Made by `make comparison sanity SEEDS={seeds_of(summaries)}`. Success in % (PointMass) or % of the expert's",
        "return, mean ± standard deviation over the seeds, final policies. Seconds are those of all trainings that a",
        "policy needs, a seed, with two or more processes at once on two cores.",
        "",
        "| task | method | score | each seed | policy steps | seconds |",
        "|---|---|---|---|---|---|",
    ]
    for name, summary in summaries.items():
        for row in sorted(summary["methods"], key=lambda row: -figures(row).mean()):
            found = figures(row)
            each = ", ".join(f"{value:.1f}" for value in found)
            cells = (name, row["method"], spread(found), each, f"{row['steps']:,}", f"{row['seconds']:.0f}")
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def methods_of(summaries: dict[str, dict[str, Any]]) -> list[str]:
    """All methods, ours first and the yardstick last."""
    found = {row["method"] for summary in summaries.values() for row in summary["methods"]}
    return sorted(found, key=lambda method: (method != "smodice", method == "oracle", method != "returns", method))


def stress(summaries: dict[str, dict[str, Any]]) -> list[str]:
    """One row for each recipe, one column for each method, every seed."""
    methods = methods_of(summaries)
    lines = [f"| recipe | {' | '.join(methods)} |", "|---" * (1 + len(methods)) + "|"]
    for name, summary in summaries.items():
        found = {row["method"]: ", ".join(f"{x:.1f}" for x in figures(row)) for row in summary["methods"]}
        lines.append(f"| `{name}` | {' | '.join(found.get(method, '') for method in methods)} |")
    return lines


def draw(folders: list[Path], path: Path) -> None:
    """The score over training of every run, a panel for each method."""
    found = runs.collect(folders)
    png.save(path, report.returns_panels(found), "Score over training", [", ".join(map(name_of, folders))])


def draw_stress(summaries: dict[str, dict[str, Any]], path: Path) -> None:
    """One line for each recipe, a dot for each seed, a colour for each method."""
    from matplotlib.figure import Figure

    methods = methods_of(summaries)
    figure = Figure(figsize=(9, 0.32 * len(summaries) + 1.2), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    for number, method in enumerate(methods):
        for line, summary in enumerate(summaries.values()):
            found = np.array([x for row in summary["methods"] if row["method"] == method for x in figures(row)])
            place = np.full(len(found), line + 0.18 * (number - (len(methods) - 1) / 2))
            label = method if line == 0 else None
            axes.plot(found, place, "o", color=f"C{number}", markersize=4, alpha=0.8, label=label)
    axes.set_yticks(range(len(summaries)), list(summaries))
    axes.set_ylim(len(summaries) - 0.4, -0.6)
    axes.set_xlabel("% of the expert's return (AntMaze: of the episodes that succeed); one dot a seed")
    axes.grid(axis="x", alpha=0.3)
    figure.legend(loc="outside upper center", ncols=len(methods), frameon=False)
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("table", choices=("ablation", "comparison", "stress"))
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    folders = [folder for folder in options.folders if (folder / "summary.json").exists()]
    summaries = {name_of(folder): json.loads((folder / "summary.json").read_text()) for folder in folders}
    lines = {"ablation": ablation, "comparison": comparison, "stress": stress}[options.table](summaries)
    if options.table == "comparison":
        picture = options.out.with_suffix(".png")
        draw(folders, picture)
        lines += ["", f"![score over training]({picture.name})"]
    if options.table == "stress":
        draw_stress(summaries, options.out.with_suffix(".png"))
    options.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
