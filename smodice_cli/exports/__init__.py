"""What leaves the tool: a form is one class in a module here, and one line in the table."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from smodice_cli.registry import Registry


class Export:
    """A form in which an artifact goes to other programs."""

    kind: ClassVar[str] = "weights"  # of the artifacts it takes
    ending: ClassVar[str]
    extra: ClassVar[tuple[str, str]] = ("", "")  # a package it needs, and our extra that brings it
    chooses: ClassVar[bool] = False  # whether it holds some trajectories, --top of them

    def write(self, artifact: Path, target: Path, top: int) -> dict[str, Any]:
        """Write the artifact's content to `target`; returns what --json tells of it."""
        raise NotImplementedError


EXPORTS: Registry[Export] = Registry(
    "form",
    {
        "csv": "smodice_cli.exports.tables:Csv",
        "parquet": "smodice_cli.exports.tables:Parquet",
        "npz": "smodice_cli.exports.tables:Npz",
        "filter-key": "smodice_cli.exports.choices:FilterKey",
        "episodes": "smodice_cli.exports.choices:Episodes",
        "onnx": "smodice_cli.exports.onnx:Onnx",
    },
    singletons=True,
)
