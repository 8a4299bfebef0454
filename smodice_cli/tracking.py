"""Trackers: where the figures of a training go beside its log, which stays the truth (`--track tensorboard,wandb`)."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from smodice_cli.console import console
from smodice_cli.errors import InputError, UsageError
from smodice_cli.files import first_line
from smodice_cli.registry import Registry

PROJECT = "smodice"


class Tracker:
    """One training, told to somebody else: `name` is e.g. runs/pm/seed0/policy, `start` the step it goes on from."""

    package = ""  # what it needs; our extra of the tracker's name brings it

    def __init__(self, folder: Path, name: str, config: Mapping[str, Any], start: int) -> None: ...

    def write(self, step: int, figures: Mapping[str, float]) -> None:
        """The figures of one step."""

    def close(self) -> None:
        """Nothing more will come."""


class TensorBoard(Tracker):
    """Event files in `tensorboard/` beside the artifact."""

    package = "tensorboard"

    def __init__(self, folder: Path, name: str, config: Mapping[str, Any], start: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(folder / "tensorboard" / Path(name).name), purge_step=start or None)

    def write(self, step: int, figures: Mapping[str, float]) -> None:
        for name, value in figures.items():
            self.writer.add_scalar(name, value, step)

    def close(self) -> None:
        self.writer.close()


class Wandb(Tracker):
    """A run of the project `smodice`."""

    package = "wandb"

    def __init__(self, folder: Path, name: str, config: Mapping[str, Any], start: int) -> None:
        self.module = importlib.import_module(self.package)
        self.module.init(project=PROJECT, name=name, config=dict(config))

    def write(self, step: int, figures: Mapping[str, float]) -> None:
        self.module.log(dict(figures), step=step)

    def close(self) -> None:
        self.module.finish()


class Trackio(Wandb):
    """The same in trackio, which has wandb's functions and keeps everything on this machine."""

    package = "trackio"


TRACKERS: Registry[type[Tracker]] = Registry(
    "tracker", {"tensorboard": TensorBoard, "wandb": Wandb, "trackio": Trackio}
)


def named(text: str) -> list[str]:
    """The trackers in `tensorboard,wandb`; refuses unknown names, and those whose package is not there."""
    names = [name.strip() for name in text.split(",")] if text else []
    for name in names:
        TRACKERS.check(name, "--track", UsageError)
        package = TRACKERS[name].package
        if package and importlib.util.find_spec(package) is None:
            raise InputError(f"--track {name} needs the {package} package", f"pip install 'smodice[{name}]'")
    return names


class Followers:
    """The trackers of one training; one that fails is left behind with a warning, and the training goes on."""

    def __init__(self, text: str, out: Path, config: Mapping[str, Any], start: int) -> None:
        self.found: dict[str, Tracker] = {}
        for name in named(text):
            with self._without(name):
                self.found[name] = TRACKERS[name](out.parent, str(out.with_suffix("")), config, start)

    def write(self, step: int, figures: Mapping[str, float]) -> None:
        """Tell everyone."""
        for name, tracker in list(self.found.items()):
            with self._without(name):
                tracker.write(step, figures)

    def close(self) -> None:
        """Let everyone finish."""
        for name, tracker in list(self.found.items()):
            with self._without(name):
                tracker.close()

    @contextmanager
    def _without(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # whatever a tracker raises: the log is the truth
            self.found.pop(name, None)
            console.warn(f"--track {name} failed and is left out ({first_line(error)})")
