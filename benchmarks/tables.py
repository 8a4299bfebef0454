"""Finished runs as tables of docs/, from their summary.json:

python benchmarks/tables.py ablation RUNS... > docs/ablation.md                                     # make ablation
python benchmarks/tables.py comparison RUNS... --png docs/comparison.png > docs/comparison.md     # make comparison
"""

from __future__ import annotations

import argparse
import json
import tomllib
from pathlib import Path
from typing import Any

import numpy as np

from smodice_cli.inspect import theme
from smodice_cli.stages import report, runs

VARIANTS = tomllib.loads((Path(__file__).parents[1] / "pipelines" / "ablation.toml").read_text())
WIDTH, HEIGHT = 9.0, 4.5  # inches of each picture


def figures(row: dict[str, Any]) -> np.ndarray:
    """Each seed's success where the task has it, otherwise its return, in per cent (of the expert's)."""
    seeds = row["per_seed"].values()
    return np.array([100 * s["success_rate"] if "success_rate" in s else s["of_expert"] for s in seeds])


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
    lines = [
        "# Each setting changed alone",
        "",
        f"Made by `make ablation SEEDS={seeds_of(summaries)}`. Success in % (PointMass) or % of the expert's return,",
        "mean ± standard deviation over the seeds. Every row has 10,000 policy steps, a third of the recipes' own.",
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
        "policy needs, a seed, with two processes at once on two cores.",
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


def draw(folders: list[Path], path: Path) -> None:
    """The score over training, one picture for each run, below each other."""
    strips = []
    for folder in folders:
        found = runs.collect([folder])
        (panel,) = report.returns_panels(found, [run.method for run in found])
        figure = theme.render(panel, theme.LIGHT, WIDTH, HEIGHT)
        figure.axes[0].set_title(folder.name)
        figure.canvas.draw()
        strips.append(np.asarray(figure.canvas.buffer_rgba())[..., :3])  # type: ignore[attr-defined]
    path.write_bytes(theme.png_bytes(np.concatenate(strips)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("table", choices=("ablation", "comparison"))
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--png", type=Path)
    options = parser.parse_args()
    summaries = {folder.name: json.loads((folder / "summary.json").read_text()) for folder in options.folders}
    lines = {"ablation": ablation, "comparison": comparison}[options.table](summaries)
    if options.png:
        draw(options.folders, options.png)
        lines += ["", f"![score over training]({options.png.name})"]
    print("\n".join(lines))


if __name__ == "__main__":
    main()
