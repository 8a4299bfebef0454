"""The paper's own scores, to stand beside ours: what its text states as numbers (its training curves are pictures)."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any


@cache
def _printed() -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_suffix(".toml").read_text())


def setting(env: str, expert: Sequence[str]) -> str:
    """Which of the paper's three problems a dataset poses, by the sources of its expert states."""
    if any("#success" in text for text in expert):
        return "examples"
    own = {env, f"{env}-expert", f"{env}-random", f"{env}-medium"}
    simulated = [text.removeprefix("sim:") for text in expert if text.startswith("sim:")]
    other = {name.partition("#")[0].partition("@")[0] for name in simulated} - own
    return "mismatched" if other else "observations"


def score(env: str, problem: str, algo: str = "smodice") -> tuple[str, float | None]:
    """What the paper says about a task and an algorithm, for a table, and the number to sort by where there is one."""
    number, drop = _printed().get(algo, {}).get(env, {}).get(problem), _printed()["drops"].get(env)
    if number is not None:
        return f"{number:.1f}", number
    if algo == "smodice" and problem == "mismatched" and drop:
        return f"{drop:.1f} % below its own expert's", None
    return "", None
