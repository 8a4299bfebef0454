"""Weights and policies that leave the tool: equal to the originals, by the user's own numbers."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import formats
import h5py
import numpy as np
import pytest
from conftest import SMALL, refuse, succeed
from formats import FORMATS, Arm

from smodice_cli import artifacts
from smodice_cli.algos.acting import NumpyPolicy
from smodice_cli.steering import RowWeights

ARM = Arm.of((30, 20, 25, 28, 22, 30))
FEW = ("--steps", "20", *SMALL)


def weigh(run: Path, source: Path, *flags: str) -> Path:
    """The weights of a recording."""
    given = ("--env", "data", "--offline", source, "--expert", f"{source}#traj=0", *flags)
    succeed("build-dataset", *given, "--out", run / "dataset.h5")
    succeed("train-disc", "--data", run / "dataset.h5", *FEW)
    succeed("train-value", "--disc", run / "disc.safetensors", *FEW)
    return run / "weights.h5"


@pytest.fixture(scope="module")
def robomimic(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Demonstrations whose numbers are not those of their order in the dataset, and their weights."""
    folder = tmp_path_factory.mktemp("robomimic")
    path = formats.robomimic(folder / "arm.hdf5", ARM)
    with h5py.File(path, "a") as file:
        for number in reversed(range(len(ARM.states))):
            file.move(f"data/demo_{number}", f"data/demo_{10 * number + 3}")
    return path, weigh(folder, path, "--obs-keys", "joints,rest")


@pytest.fixture(scope="module")
def lerobot(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("lerobot")
    path = formats.lerobot(folder / "arm", ARM)
    return path, weigh(folder, path)


def read_back(path: Path) -> dict[str, np.ndarray]:
    """An exported table."""
    if path.suffix == ".npz":
        return dict(np.load(path))
    if path.suffix == ".parquet":
        import pyarrow.parquet as pq

        table = pq.read_table(path)
        return {name: np.array(table[name]) for name in table.column_names}
    with open(path, newline="") as handle:
        rows = list(csv.DictReader(handle))
    kinds = {"episode": int, "frame": int, "weight": float}
    return {name: np.array([kinds.get(name, str)(row[name]) for row in rows]) for name in rows[0]}


@pytest.mark.parametrize("form", ["csv", "parquet", "npz"])
def test_weights_read_back_are_the_originals_row_by_row(
    form: str, robomimic: tuple[Path, Path], lerobot: tuple[Path, Path], tmp_path: Path
) -> None:
    for (path, weights), step in ((robomimic, 10), (lerobot, 1)):
        out = tmp_path / f"{path.stem}{step}.{form}"
        succeed("export", weights, "--to", form, "--out", out)
        found = read_back(out)
        w = artifacts.load(weights, "weights").arrays["w"]
        np.testing.assert_array_equal(found["weight"].astype(w.dtype), w)
        lengths = [len(part) - 1 for part in ARM.states]
        numbers = np.arange(len(lengths)) * step + (3 if step > 1 else 0)
        np.testing.assert_array_equal(found["episode"], np.repeat(numbers, lengths))
        np.testing.assert_array_equal(found["frame"], np.concatenate([np.arange(length) for length in lengths]))
        assert set(found["file"]) == {str(path)}
        if step > 1:
            assert found["name"][0] == "demo_3"
            assert found["name"][-1] == "demo_53"


@pytest.mark.parametrize("name", FORMATS)
def test_every_row_is_found_again_where_it_was_recorded(name: str, tmp_path: Path) -> None:
    """By the numbers alone: the state that the recording holds there is the state of the row."""
    place, write, flags = FORMATS[name]
    weights = RowWeights.load(weigh(tmp_path / "run", write(tmp_path / place, ARM), *flags))
    flat = np.concatenate(ARM.states)
    starts = np.cumsum([0, *(len(part) for part in ARM.states[:-1])])
    rows = {"aloha": starts[weights.file] + weights.frame}.get(name)
    if rows is None:  # plain columns number the rows of the file, the others the frames of an episode
        by_row = name.removesuffix("-numbered") in ("d4rl", "npz", "npy", "ogbench", "csv", "parquet", "zarr")
        rows = weights.frame if by_row else starts[weights.episode] + weights.frame
    data = artifacts.load(tmp_path / "run/dataset.h5", "dataset")
    np.testing.assert_array_equal(flat[rows], data.arrays["observations"])


def test_the_heaviest_demonstrations_as_a_filter_key(robomimic: tuple[Path, Path], tmp_path: Path) -> None:
    path, weights = robomimic
    told = succeed("export", weights, "--to", "filter-key", "--top", "2", "--out", tmp_path / "top.hdf5", "--json").json
    found = read_back_trajectories(weights)[:2]
    with h5py.File(tmp_path / "top.hdf5") as file, h5py.File(path) as original:
        assert [name.decode() for name in file["mask/smodice_2"]] == [f"demo_{number}" for number in found]
        assert [name.decode() for name in file["mask/train"]] == [name.decode() for name in original["mask/train"]]
        np.testing.assert_array_equal(file["data/demo_13/actions"], original["data/demo_13/actions"])
    assert told["demos"] == [f"demo_{number}" for number in found]


def read_back_trajectories(weights: Path) -> list[int]:
    """The episodes by mean weight, the slow way."""
    rows = RowWeights.load(weights)
    means = {k: rows.weight[rows.episode == k].mean() for k in set(rows.episode.tolist())}
    return sorted(means, key=lambda k: -means[k])


def test_the_heaviest_episodes_as_a_list(lerobot: tuple[Path, Path], tmp_path: Path) -> None:
    path, weights = lerobot
    succeed("export", weights, "--to", "episodes", "--top", "3", "--out", tmp_path / "top.json")
    found = json.loads((tmp_path / "top.json").read_text())
    assert found["episodes"] == read_back_trajectories(weights)[:3]
    assert found["trajectories"][0]["file"] == str(path)


def test_a_sampler_draws_frames_in_proportion_to_their_weight(lerobot: tuple[Path, Path]) -> None:
    """Over the items of a data set that also has the last frames, which have no weight."""
    import torch

    weights = RowWeights.load(lerobot[1])
    generator = torch.Generator().manual_seed(0)
    sampler = weights.sampler(ARM.episode(), ARM.frame(), count=200_000, generator=generator)
    loader = torch.utils.data.DataLoader(torch.arange(len(ARM.frame())), batch_size=1000, sampler=sampler)
    drawn = np.bincount(torch.cat(list(loader)).numpy(), minlength=len(ARM.frame()))
    last = np.append(np.diff(ARM.episode()) != 0, True)
    assert not drawn[last].any()
    np.testing.assert_allclose(drawn[~last] / drawn.sum(), weights.weight / weights.weight.sum(), atol=2e-3)


@pytest.mark.parametrize("absorbing", [True, False])
def test_onnx_equals_our_own_forward_pass(absorbing: bool, tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    path = formats.lerobot(tmp_path / "arm", ARM)
    weigh(tmp_path, path, *(["--absorbing"] if absorbing else []))
    succeed("train-policy", "--value", tmp_path / "value.safetensors", *FEW)
    succeed("export", tmp_path / "policy.safetensors", "--to", "onnx")
    session = runtime.InferenceSession(tmp_path / "policy.onnx")
    states = (5 * np.random.default_rng(0).normal(size=(1000, 3))).astype(np.float32)
    (found,) = session.run(None, {"state": states})
    ours = NumpyPolicy.load(tmp_path / "policy.safetensors")
    seen = np.pad(states, ((0, 0), (0, 1))) if absorbing else states
    np.testing.assert_allclose(found, ours.act(seen), atol=1e-5)
    assert session.get_modelmeta().custom_metadata_map["state_names"] == ",".join(formats.JOINTS)


def test_what_cannot_be_exported_is_refused(
    robomimic: tuple[Path, Path], lerobot: tuple[Path, Path], tmp_path: Path
) -> None:
    path, weights = robomimic
    assert "unknown form 'xlsx'" in refuse(2, "export", weights, "--to", "xlsx")
    assert "does not" in refuse(2, "export", weights, "--to", "csv", "--top", "3")
    assert "is a form of policy" in refuse(3, "export", weights, "--to", "onnx")
    assert "ends in .csv" in refuse(2, "export", weights, "--to", "csv", "--out", tmp_path / "x.parquet")
    assert "has only 6 trajectories" in refuse(3, "export", weights, "--to", "episodes", "--top", "7")
    assert "not from one robomimic file" in refuse(3, "export", lerobot[1], "--to", "filter-key", "--top", "2")
    (tmp_path / "mine.csv").write_text("mine")
    assert "exists" in refuse(5, "export", weights, "--to", "csv", "--out", tmp_path / "mine.csv")
    assert (tmp_path / "mine.csv").read_text() == "mine"
    assert "was not written by smodice" in refuse(3, "export", path, "--to", "csv")
    assert sorted(place.name for place in tmp_path.iterdir()) == ["mine.csv"]
