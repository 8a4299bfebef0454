"""Policies kept at evenly spaced steps of their training, so that eval can show the return over it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from smodice_cli import artifacts
from smodice_cli.algos.acting import SNAPSHOT_STEPS
from smodice_cli.artifacts import Link
from smodice_cli.stages.runner import Job


def snapshots_path(policy: Path) -> Path:
    """Where the snapshots of a policy artifact lie: policy.safetensors -> policy.snapshots.safetensors."""
    return policy.with_suffix(".snapshots.safetensors")


class Snapshots:
    """Copies of a module's tensors at `count` evenly spaced steps, stacked; the last is the finished one."""

    def __init__(self, module: nn.Module, count: int, steps: int) -> None:
        self.wanted = count > 0
        marks = np.unique(np.linspace(0, steps, count + 1).round()).astype(np.int64)[1:-1]
        self.steps = torch.from_numpy(marks)
        self.stacked = {
            name: torch.zeros(len(marks), *tensor.shape, dtype=tensor.dtype)
            for name, tensor in module.state_dict().items()
        }

    def state(self) -> dict[str, Tensor]:
        """What a checkpoint must hold of them."""
        return {f"snapshot/{name}": tensor for name, tensor in self.stacked.items()}

    def take(self, done: int, module: nn.Module) -> None:
        """Copy the module if this many steps are one of the marks."""
        for index in torch.nonzero(self.steps == done).flatten().tolist():
            for name, tensor in module.state_dict().items():
                self.stacked[name][index] = tensor.cpu()

    def write(self, job: Job, module: nn.Module, done: int, metrics: dict, seconds: float) -> dict[str, Link]:
        """The artifact beside the policy, as the policy's header names it; none where none were asked for.

        `module` is the finished policy after `done` steps, which may be fewer than were planned.
        """
        if not self.wanted:
            return {}
        path, taken = snapshots_path(job.out), int((self.steps < done).sum())
        own = Job(job.stage, "snapshots", path, job.config, job.seed, job.inputs)
        tensors = {SNAPSHOT_STEPS: torch.cat([self.steps[:taken], torch.tensor([done])])}
        for name, tensor in module.state_dict().items():
            tensors[name] = torch.cat([self.stacked[name][:taken], tensor.cpu()[None]])
        written = artifacts.write_safetensors(path, own.header(metrics=metrics, seconds=seconds), tensors)
        return {"snapshots": Link(path.name, written.digest)}
