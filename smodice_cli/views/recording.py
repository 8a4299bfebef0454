"""A recording that is no artifact yet: what lies in it, what would be read of it, and the command that loads it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from contextlib import suppress
from itertools import chain
from pathlib import Path

from smodice_cli import artifacts, envs
from smodice_cli.console import escape
from smodice_cli.containers import DAMAGE
from smodice_cli.errors import SmodiceError
from smodice_cli.files import matching
from smodice_cli.lazy import h5py, np
from smodice_cli.sources import layouts
from smodice_cli.sources.layouts import Layout
from smodice_cli.sources.source import MARKS, Choice, parse_keys, words
from smodice_cli.views import Block, Facts, Table, figures
from smodice_cli.views.render.terminal import columns

ARTIFACTS = (".safetensors", ".json", ".jsonl")


def is_one(path: Path) -> bool:
    """Whether a path is to be looked at as a recording; what may be an artifact is left to those that know them."""
    if path.is_dir():
        return not any(map(_is_artifact, path.glob("*.h5"))) and not any(path.glob("*.safetensors"))
    return bool(matching(path)) and path.suffix not in ARTIFACTS and not _is_artifact(path)


def _is_artifact(path: Path) -> bool:
    with suppress(*DAMAGE):
        if path.is_file() and h5py.is_hdf5(path):
            with h5py.File(path, "r") as file:
                return artifacts.TAG in file.attrs
    return path.suffix == ".h5" and path.is_file() and not h5py.is_hdf5(path)  # a damaged one


def describe(path: Path, given: Mapping[str, str] | None = None) -> Facts:
    """What a recording holds, and what would be read of it with the flags `given`, or where some miss, with a guess."""
    flags = dict(given or {})
    with layouts.opened(path, _choice(flags)) as recording:
        names = {kind: name for name, kind in layouts.LAYOUTS.items()}
        facts: Facts = {"path": str(path), "layout": names.get(type(recording), "?"), "holds": recording.listing()}
        guess = recording.flags()
    flags |= dict(zip(guess[::2], guess[1::2], strict=True))
    facts["guessed"] = guess
    try:
        with layouts.opened(path, _choice(flags)) as chosen:
            facts |= _read(chosen)
    except SmodiceError as error:
        return facts | {"problem": error.message, "hint": error.hint}
    return facts | ({"command": command(path, flags)} if facts["action"] else {"as_expert": as_expert(path, flags)})


def _choice(flags: Mapping[str, str]) -> Choice:
    """The choice that build-dataset would make with these flags."""
    return Choice(
        parts=words(flags.get("--obs-keys", "")),
        columns=words(flags.get("--state-columns", "")),
        actions=words(flags.get("--action-columns", "")),
        episode=flags.get("--episode-column", ""),
        keys=parse_keys(flags.get("--keys", "")),
    )


def command(path: Path, flags: Mapping[str, str]) -> str:
    """The command that would load it, as offline data and for the expert."""
    source = ["--offline", str(path), "--expert", f"{path}#traj=0"]
    return shlex.join(["smodice", "build-dataset", "--env", envs.DATA, *source, *chain.from_iterable(flags.items())])


def as_expert(path: Path, flags: Mapping[str, str]) -> str:
    """What to say to build-dataset where it has no actions, beside data that do."""
    keys = dict(parse_keys(flags.get("--keys", "")))
    chosen = flags.get("--state-columns") or flags.get("--obs-keys") or keys.pop("observations", "")
    own = ["--expert-keys", chosen] if chosen else []
    own += ["--keys", ",".join(f"{ours}={theirs}" for ours, theirs in keys.items())] if keys else []
    return shlex.join(["--expert", str(path), *own])


def _read(recording: Layout) -> Facts:
    """Sizes and names, from reading all of it once."""
    held = recording.describe()
    states_only = not held.actions and not recording.choice.actions
    lengths = [np.diff(block.offsets) for block in recording.episodes(envs.UNLIMITED, states_only=states_only)]
    counts = np.concatenate(lengths) if lengths else np.zeros(0, np.int64)
    found: Facts = {
        "state": held.observations,
        "action": held.actions,
        "rewards": held.rewards,
        "ends": held.ends,
        "episodes": len(counts),
        "transitions": int(counts.sum()),
        "left_out": list(held.left_out),
        "state_names": list(held.names),
        "action_names": list(held.action_names),
    }
    return found | ({"shortest": int(counts.min()), "longest": int(counts.max())} if len(counts) else {})


def show(facts: Facts) -> list[Block]:
    """The same for a terminal."""
    shown: list[Block] = [[f"[bold]{escape(facts['path'])}[/]", f"a recording, layout {facts['layout']}"]]
    shown.append(Table("holds", ["", ""], [[name, what] for name, what in facts["holds"].items()]))
    if "problem" in facts:
        hint = [f"[dim]try:[/] {escape(facts['hint'])}"] if facts["hint"] else []
        return [*shown, [f"[yellow]cannot be read as it is[/]: {escape(facts['problem'])}", *hint]]
    read = {name: ", ".join(facts[name]) or "none" for name in ("state_names", "action_names", "left_out")}
    read["rewards"] = "yes" if facts["rewards"] else "none"
    shown.append(figures("would be read", columns("recording"), facts | read))
    if facts["action"] and facts["episodes"] == 1 and not facts["ends"]:
        shown.append([f"[yellow]nothing marks where episodes end[/], so all is one: {escape(MARKS)}"])
    if facts["guessed"]:
        guess = shlex.join(facts["guessed"])
        shown.append([f"[yellow]guessed from the names[/], where you say nothing else: {escape(guess)}"])
    if "command" in facts:
        return [*shown, [f"[dim]load it:[/] {escape(facts['command'])}"]]
    only = "without actions it can only be the expert of other data"
    single = shlex.join(["--expert", f"{facts['path']}#states", *shlex.split(facts["as_expert"])[2:]])
    return [*shown, [f"{only}:  {escape(facts['as_expert'])}", f"or, of single states:  {escape(single)}"]]
