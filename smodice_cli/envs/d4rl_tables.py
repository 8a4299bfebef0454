"""D4RL's own tables: where each data set lies and which returns count as 0 and 100.

The tables of the genuine `d4rl` package are used where it is installed; ours, for the paper's task families, are equal
to them (a test compares). Only its file of tables is read: importing the package itself would import gym, make a folder
in the user's home and print warnings.
"""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path

BASE = "http://rail.eecs.berkeley.edu/datasets/offline_rl"

# Returns (random, expert) of a task family.
SCORES: dict[str, tuple[float, float]] = {
    "hopper": (-20.272305, 3234.3),
    "walker2d": (1.629008, 4592.3),
    "halfcheetah": (-280.178953, 12135.0),
    "ant": (-325.6, 3879.7),
    "antmaze": (0.0, 1.0),
    "kitchen": (0.0, 4.0),
    "maze2d-umaze": (23.85, 161.86),
    "maze2d-medium": (13.13, 277.39),
    "maze2d-large": (6.7, 273.99),
}
BODIES = ("hopper", "walker2d", "halfcheetah", "ant")
QUALITIES = ("random", "medium", "expert", "medium-expert", "medium-replay", "full-replay")
ANTMAZES = {  # id: (maze, several starts, several goals), as D4RL's file names spell them
    "umaze": ("u-maze", False, False),
    "umaze-diverse": ("u-maze", True, True),
    "medium-play": ("big-maze", True, False),
    "medium-diverse": ("big-maze", True, True),
    "large-play": ("hardest-maze", True, False),
    "large-diverse": ("hardest-maze", True, True),
}
KITCHENS = {
    "complete": "mini_kitchen_microwave_kettle_light_slider",
    "partial": "kitchen_microwave_kettle_light_slider",
    "mixed": "kitchen_microwave_kettle_bottomburner_light",
}


def own_urls() -> dict[str, str]:
    """Our table of the paper's task families: id -> URL."""
    urls = {
        f"{body}-{quality}-v2": f"{BASE}/gym_mujoco_v2/{body}_{quality.replace('-', '_')}-v2.hdf5"
        for body in BODIES
        for quality in QUALITIES
    }
    for name, (maze, starts, goals) in ANTMAZES.items():
        stem = f"Ant_maze_{maze}_noisy_multistart_{starts}_multigoal_{goals}_sparse"
        urls[f"antmaze-{name}-v0"] = f"{BASE}/ant_maze_new/{stem}.hdf5"
        urls[f"antmaze-{name}-v2"] = f"{BASE}/ant_maze_v2/{stem}_fixed.hdf5"
    urls |= {f"kitchen-{name}-v0": f"{BASE}/kitchen/{stem}-v0.hdf5" for name, stem in KITCHENS.items()}
    mazes = ("umaze", "medium", "large")
    urls |= {f"maze2d-{maze}-v1": f"{BASE}/maze2d/maze2d-{maze}-sparse-v1.hdf5" for maze in mazes}
    return urls


def own_scores(dataset: str) -> tuple[float, float] | None:
    """Our reference returns (random, expert) for a data set's id, or None where we know none."""
    families = [family for family in SCORES if dataset.startswith(f"{family}-")]
    return SCORES[families[0]] if families else None


@cache
def urls() -> dict[str, str]:
    """Every known id and its URL: the installed d4rl's table, or ours."""
    genuine = genuine_tables()
    return genuine[0] if genuine else own_urls()


def reference_scores(dataset: str) -> tuple[float, float]:
    """The returns that count as 0 and 100 for a data set: from the installed d4rl, or ours."""
    genuine = genuine_tables()
    if genuine and dataset in genuine[1]:
        return genuine[1][dataset]
    found = own_scores(dataset)
    if found is None:
        raise KeyError(dataset)
    return found


@cache
def genuine_tables() -> tuple[dict[str, str], dict[str, tuple[float, float]]] | None:
    """(URLs, reference scores) of the installed d4rl package, or None; a broken installation counts as none."""
    try:
        package = importlib.util.find_spec("d4rl")
        if package is None or package.origin is None:
            return None
        place = Path(package.origin).with_name("infos.py")
        loader = importlib.util.spec_from_file_location("_d4rl_tables", place)
        assert loader is not None
        assert loader.loader is not None
        tables = importlib.util.module_from_spec(loader)
        loader.loader.exec_module(tables)
        low, high = tables.REF_MIN_SCORE, tables.REF_MAX_SCORE
        scores = {name: (float(low[name]), float(high[name])) for name in low.keys() & high.keys()}
        return dict(tables.DATASET_URLS), scores
    except Exception:  # an optional package, whatever its state, must not stop the tool
        return None
