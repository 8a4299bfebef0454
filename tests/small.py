"""The shipped recipes and commands with small sizes put in, so that tests run what people type; no tests."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

from smodice_cli import recipes

FEW = ("--steps", "20", "--set", "hidden=8", "--set", "batch=8")
SMALL = {
    **dict.fromkeys(("train-disc", "train-value", "train-policy"), FEW),
    "run": ("--seeds", "0"),
    "eval": ("--episodes", "2", "--threads", "1"),
    "select-f": ("--steps", "20", "--policy-steps", "20"),
}


SMALL_RUN = tuple(  # without a recipe
    word
    for section in ("disc", "value", "policy")
    for setting in ("steps=20", "hidden=8", "batch=8")
    for word in ("--set", f"{section}.{setting}")
)


def small_flags(words: list[str]) -> tuple[str, ...]:
    """What makes a command a small one."""
    return SMALL.get(words[0], ()) + (SMALL_RUN if words[0] == "run" and "--env" in words else ())


def small_sources(text: str) -> str:
    """`sim:` sources, and steps of a training, cut down to a second's work."""
    fewer = re.sub(r"(sim:[^\"\s#]+)#\d+", r"\1#600", re.sub(r"\.steps=\d+", ".steps=20", text))
    fewer = re.sub(r"(sim:[^\"\s#]+#(?:episodes|best))=\d+", r"\1=2", fewer)
    return re.sub(r"(sim:[^\"\s#]+#(?:success|states))=\d+", r"\1=20", fewer)


def small_python(code: str) -> str:
    """Trainings in a block of Python, cut down in the same way."""

    def small(call: re.Match[str]) -> str:
        return re.sub(r", steps=[\d_]+", "", call[1]) + ", steps=20, hidden=8, batch=8)"

    return re.sub(r"(smodice\.train_\w+\([^()]*)\)", small, code)


def small_recipe(text: str) -> str:
    """A shipped recipe with few data, few steps, small networks and two episodes, and otherwise what it was."""
    settings = tomllib.loads(small_sources(text))
    for section in ("disc", "value", "policy"):
        own = settings.setdefault(section, {})
        for part in (own, *(part for part in own.values() if isinstance(part, dict))):
            part |= {"steps": 20, "hidden": 8, "batch": 8}
    settings.setdefault("eval", {}).update(episodes=2, curve_episodes=1)
    return toml(settings)


def toml(settings: dict[str, Any], name: str = "") -> str:
    tables = {key: value for key, value in settings.items() if isinstance(value, dict)}
    lines = [f"{key} = {json.dumps(value)}" for key, value in settings.items() if key not in tables]
    below = [toml(table, f"{name}.{key}".lstrip(".")) for key, table in tables.items()]
    return "\n".join([f"[{name}]" if name else "", *lines, *below]) + "\n"


def small_pipelines(folder: Path) -> Path:
    """The shipped recipes, small; files of variants as they are."""
    home = recipes.pipelines()
    for path in home.rglob("*.toml"):
        copy = folder / path.relative_to(home)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(small_recipe(path.read_text()) if path.parent != home else path.read_text())
    return folder
