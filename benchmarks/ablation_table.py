"""The ablation as a table: `python benchmarks/ablation_table.py RUNS... > docs/ablation.md`, from their summary.json.

`make ablation` runs each recipe with the changes of pipelines/ablation.toml and then this.
"""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path

import numpy as np

VARIANTS = tomllib.loads((Path(__file__).parents[1] / "pipelines" / "ablation.toml").read_text())


def change(method: str) -> str:
    """What a variant changes, in the words of the settings."""
    sections = VARIANTS.get(method, {})
    pairs = [f"`{s}.{k} = {json.dumps(v)}`" for s, settings in sections.items() for k, v in settings.items()]
    return ", ".join(pairs) or "nothing: the recipe as shipped"


def score(row: dict) -> str:
    """Mean and spread over seeds: success where the task has it, otherwise per cent of the expert's return."""
    seeds = row["per_seed"].values()
    found = np.array([100 * s["success_rate"] if "success_rate" in s else s["of_expert"] for s in seeds])
    return f"{found.mean():.1f} ± {found.std(ddof=1):.1f}" if len(found) > 1 else f"{found.mean():.1f}"


def main(folders: list[Path]) -> None:
    runs = {folder.name: json.loads((folder / "summary.json").read_text()) for folder in folders}
    seeds = sorted({seed for run in runs.values() for seed in run["seeds"]})
    print("# Each setting changed alone\n")
    print(
        "Made by `make ablation SEEDS="
        + ",".join(map(str, seeds))
        + "`. Success in % (PointMass) or % of the expert's "
        "return, mean ± standard deviation over the seeds.\n"
    )
    print("| variant | change | " + " | ".join(runs) + " |")
    print("|---" * (2 + len(runs)) + "|")
    tables = [{row["method"]: score(row) for row in run["methods"]} for run in runs.values()]
    for method in ("smodice", *VARIANTS):
        cells = [table.get(method, "") for table in tables]
        print(f"| {'default' if method == 'smodice' else method} | {change(method)} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main([Path(name) for name in sys.argv[1:]])
