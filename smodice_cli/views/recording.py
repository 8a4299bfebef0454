"""A recording that is no artifact yet: what lies in it, what would be read of it, and the command that loads it."""

from __future__ import annotations

import shlex
from contextlib import suppress
from pathlib import Path

from smodice_cli import artifacts, envs
from smodice_cli.console import escape
from smodice_cli.errors import SmodiceError
from smodice_cli.files import matching
from smodice_cli.lazy import h5py, np
from smodice_cli.sources import layouts
from smodice_cli.sources.layouts import Layout
from smodice_cli.sources.source import Choice, words
from smodice_cli.views import Block, Facts, Table, figures
from smodice_cli.views.render.terminal import columns

ARTIFACTS = (".safetensors", ".json", ".jsonl")


def is_one(path: Path) -> bool:
    """Whether a path is to be looked at as a recording; what may be an artifact is left to those that know them."""
    if path.is_dir():
        return not any(map(_is_artifact, path.glob("*.h5"))) and not any(path.glob("*.safetensors"))
    return bool(matching(path)) and path.suffix not in ARTIFACTS and not _is_artifact(path)


def _is_artifact(path: Path) -> bool:
    with suppress(OSError):
        if path.is_file() and h5py.is_hdf5(path):
            with h5py.File(path, "r") as file:
                return artifacts.TAG in file.attrs
    return path.suffix == ".h5" and path.is_file() and not h5py.is_hdf5(path)  # a damaged one


def describe(path: Path) -> Facts:
    """What a recording holds; where nobody has said what to read of it, with the flags that would."""
    with layouts.opened(path) as recording:
        flags, held = recording.flags(), recording.listing()
        names = {kind: name for name, kind in layouts.LAYOUTS.items()}
        facts: Facts = {"path": str(path), "layout": names.get(type(recording), "?"), "holds": held}
    facts["command"] = command(path, flags)
    try:
        with layouts.opened(path, _choice(flags)) as chosen:
            return facts | _read(chosen)
    except SmodiceError as error:
        return facts | {"problem": error.message}


def _choice(flags: list[str]) -> Choice:
    """The choice that build-dataset would make with these flags."""
    given = dict(zip(flags[::2], flags[1::2], strict=True))
    return Choice(
        parts=words(given.get("--obs-keys", "")),
        columns=words(given.get("--state-columns", "")),
        actions=words(given.get("--action-columns", "")),
        episode=given.get("--episode-column", ""),
    )


def command(path: Path, flags: list[str]) -> str:
    """The command that would load it, as offline data and for the expert."""
    source = ["--offline", str(path), "--expert", f"{path}#traj=0"]
    return shlex.join(["smodice", "build-dataset", "--env", envs.DATA, *source, *flags])


def _read(recording: Layout) -> Facts:
    """Sizes and names, from reading all of it once."""
    held = recording.describe()
    lengths = [np.diff(block.offsets) for block in recording.episodes(envs.UNLIMITED, states_only=not held.actions)]
    counts = np.concatenate(lengths) if lengths else np.zeros(0, np.int64)
    found: Facts = {
        "state": held.observations,
        "action": held.actions,
        "rewards": held.rewards,
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
        shown.append([f"[yellow]cannot be read as it is[/]: {escape(facts['problem'])}"])
    else:
        read = {name: ", ".join(facts[name]) or "none" for name in ("state_names", "action_names", "left_out")}
        shown.append(figures("would be read", columns("recording"), facts | read))
    shown.append([f"[dim]load it:[/] {escape(facts['command'])}"])
    return shown
