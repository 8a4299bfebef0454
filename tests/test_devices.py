"""The path to a device, as far as a machine without one can tell: where tensors lie, and that no step waits for it.

torch's meta device stands for it, which knows shapes but no numbers: joining or adding tensors of two places fails on
it, and so does whatever asks a tensor for its value.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from smodice_cli import artifacts
from smodice_cli.algos import clone, discriminator, dual, sampling
from smodice_cli.data import Dataset
from smodice_cli.graphs import WARM, Graph
from smodice_cli.training import Learner, fit

DEVICE = torch.device("meta")
SIZES: dict[str, Any] = {"steps": 10, "hidden": 16, "batch": 16}


def learners(data: Dataset, device: torch.device) -> dict[str, Learner]:
    """The three trainings of smodice."""
    generator = torch.Generator().manual_seed(0)
    config = dual.Config(**SIZES)
    problem = dual.set_up(data, np.zeros(data.rows, np.float32), np.zeros(len(data.offsets) - 1, np.float32), config)
    value = dual.new_value(data, config, generator)
    own = clone.TrajectoryConfig(**SIZES, loss="nll", entropy=True)
    return {
        "disc": discriminator.DiscriminatorLearner(data, discriminator.Config(**SIZES), generator, device),
        "value": dual.ValueLearner(problem, value, generator, device),
        "policy": clone.clone_rows(data, None, own, generator, device),
    }


def to(module: torch.nn.Module, device: torch.device) -> torch.nn.Module:
    """Module.to, which on a real device changes parameters in place, and here would put others in their place."""
    for part in module.modules():
        for name, tensor in part._parameters.items():
            assert tensor is not None
            part._parameters[name] = torch.nn.Parameter(tensor.detach().to(device), tensor.requires_grad)
        part._buffers.update({name: tensor.to(device) for name, tensor in part._buffers.items() if tensor is not None})
    if hasattr(module, "weights"):
        module.weights = tuple(module.body.parameters())  # type: ignore[union-attr, assignment, operator]
    return module


@pytest.fixture
def data(run: Path) -> Dataset:
    return Dataset.of(artifacts.load(run / "dataset.h5", "dataset"))


@pytest.mark.parametrize("free", [1 << 40, 0], ids=["data on the device", "data in memory"])
@pytest.mark.parametrize("name", ["disc", "value", "policy"])
def test_a_step_mixes_no_places_and_waits_for_nothing(
    data: Dataset, name: str, free: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, 1 << 40))
    monkeypatch.setattr(torch.nn.Module, "to", to)
    learner = learners(data, DEVICE)[name]
    for step in range(2):
        loss = learner.update(step)["loss"]
    assert loss.device == DEVICE
    with pytest.raises(RuntimeError, match="meta"):
        float(loss)  # which is what would wait


def test_columns_are_kept_where_they_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1000, 1 << 40))
    for rows, place in ((100, "meta"), (200, "cpu")):
        kept = sampling.resident(DEVICE, torch.zeros(rows), torch.zeros(10))
        assert [column.device.type for column in kept] == [place] * 2


def stand_in(step: Any, kept: tuple[torch.Tensor, ...]) -> Any:
    """What a device's recording does, without a device: every launch reads and writes the same memory."""
    figures: dict[str, torch.Tensor] = {}

    def replay() -> dict[str, torch.Tensor]:
        for name, figure in step(*kept).items():
            figures.setdefault(name, torch.empty_like(figure)).copy_(figure)
        return figures

    return replay


def refused(step: Any, kept: tuple[torch.Tensor, ...]) -> Any:
    raise RuntimeError("operation not permitted when stream is capturing")


@pytest.mark.parametrize("record", [stand_in, refused])
@pytest.mark.parametrize("name", ["disc", "value", "policy"])
def test_a_recorded_step_learns_what_the_plain_one_does(
    data: Dataset, name: str, record: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    trained = []
    for graph in (False, True):
        learner, losses = learners(data, torch.device("cpu"))[name], []
        if graph:
            learner.advance = Graph(learner.advance, record)  # type: ignore[method-assign]
        step = learner.update
        learner.update = lambda number, step=step, losses=losses: losses.append(step(number)) or losses[-1]  # type: ignore
        fit(learner)
        trained.append((learner.state.tensors(), [float(each["loss"]) for each in losses]))
    (plain, told), (recorded, retold) = trained
    assert all(torch.equal(plain[key], recorded[key]) for key in plain)
    assert told == retold, "figures of one step must not be written over by the next"
    assert len(set(retold)) > SIZES["steps"] - WARM
    assert ("runs piece by piece" in capsys.readouterr().err) == (record is refused)


def test_only_cudas_steps_are_recorded(data: Dataset) -> None:
    for learner in learners(data, torch.device("cpu")).values():
        assert not isinstance(learner.advance, Graph)
        learner.on_device(torch.device("cuda"))
        assert isinstance(learner.advance, Graph)
