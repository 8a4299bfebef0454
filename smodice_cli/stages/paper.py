"""The paper's own scores, to stand beside ours: what its text states as numbers (its training curves are pictures)."""

from __future__ import annotations

from collections.abc import Sequence

# (environment, setting) -> normalized score of SMODICE. Table "SMODICE vs DEMODICE+SD" of the appendix.
SCORES: dict[tuple[str, str], float] = {
    ("pointmass-4direction", "examples"): 80.0,
    ("antmaze", "examples"): 47.3,
    ("antmaze", "mismatched"): 34.3,
    ("kitchen-kettle", "examples"): 100.0,
    ("kitchen-microwave", "examples"): 60.3,
}
# The same table's DEMODICE+SD; of the other baselines the paper prints no number.
STATE_DEMODICE: dict[tuple[str, str], float] = {
    ("pointmass-4direction", "examples"): 0.0,
    ("antmaze", "examples"): 32.7,
    ("antmaze", "mismatched"): 19.8,
    ("kitchen-kettle", "examples"): 0.0,
    ("kitchen-microwave", "examples"): 0.1,
}
# environment -> how much lower the score is with a mismatched expert than with its own, in per cent (section 5.2).
DROPS: dict[str, float] = {"halfcheetah": 70.7, "ant": 3.3, "antmaze": 29.7}


def setting(env: str, expert: Sequence[str]) -> str:
    """Which of the paper's three problems a dataset poses, by the sources of its expert states."""
    if any("#success" in text for text in expert):
        return "examples"
    other = [text for text in expert if text.startswith("sim:") and not _same_body(env, text)]
    return "mismatched" if other else "observations"


def _same_body(env: str, text: str) -> bool:
    name = text.removeprefix("sim:").partition("#")[0].partition("@")[0]
    return name in (env, *(f"{env}-{who}" for who in ("expert", "random", "medium")))


def score(env: str, problem: str, algo: str = "smodice") -> tuple[str, float | None]:
    """What the paper says about a task and an algorithm, for a table, and the number to sort by where there is one."""
    table = {"smodice": SCORES, "demodice-sd": STATE_DEMODICE}.get(algo, {})
    if (env, problem) in table:
        number = table[env, problem]
        return f"{number:.1f}", number
    if algo == "smodice" and problem == "mismatched" and env in DROPS:
        return f"{DROPS[env]:.1f} % below its own expert's", None
    return "", None
