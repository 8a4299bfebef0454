"""D4RL's own tables: where each data set lies and which returns count as 0 and 100.

The tables of the genuine `d4rl` package are used where it is installed; ours, for the paper's task families, are equal
to them (a test compares). Only its file of tables is read: importing the package itself would import gym, make a folder
in the user's home and print warnings.
"""

from __future__ import annotations

import importlib.util
import runpy
import tomllib
from functools import cache
from pathlib import Path

Tables = tuple[dict[str, str], dict[str, tuple[float, float]]]  # by id: the URL, and the returns (random, expert)


@cache
def own_tables() -> Tables:
    """Ours, of the paper's task families."""
    families = tomllib.loads(Path(__file__).with_suffix(".toml").read_text()).values()
    urls = {name: url for family in families for name, url in family["urls"].items()}
    return urls, {name: tuple(family["returns"]) for family in families for name in family["urls"]}


@cache
def genuine_tables() -> Tables | None:
    """Those of the installed d4rl package, or None; a broken installation counts as none."""
    try:
        package = importlib.util.find_spec("d4rl")
        if package is None or package.origin is None:
            return None
        tables = runpy.run_path(str(Path(package.origin).with_name("infos.py")))
        low, high = tables["REF_MIN_SCORE"], tables["REF_MAX_SCORE"]
        scores = {name: (float(low[name]), float(high[name])) for name in low.keys() & high.keys()}
        return dict(tables["DATASET_URLS"]), scores
    except Exception:  # an optional package, whatever its state, must not stop the tool
        return None


def urls() -> dict[str, str]:
    """Every known id and its URL: the installed d4rl's table, or ours."""
    return (genuine_tables() or own_tables())[0]


def reference_scores(dataset: str) -> tuple[float, float]:
    """The returns that count as 0 and 100 for a data set: from the installed d4rl, or ours."""
    genuine = genuine_tables()
    return genuine[1][dataset] if genuine and dataset in genuine[1] else own_tables()[1][dataset]
