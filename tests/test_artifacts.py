"""Every file says what it is and proves that it is whole; files appear whole or not at all."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from conftest import digest, listing, refuse, succeed, wait_for

from smodice_cli import artifacts, files
from smodice_cli.artifacts import Header
from smodice_cli.errors import ForeignFileError, InputError, OutputError

FILES = ("dataset.h5", "disc.safetensors", "value.safetensors", "weights.h5", "policy.safetensors", "eval.json")
HEADER = Header("disc", "train-disc", {"lr": 0.1, "hidden": [1, 2]}, 3, key="k", metrics={"loss": 0.5})


def content(path: Path) -> tuple[Header, dict[str, bytes]]:
    artifact = artifacts.read_any(path)
    return artifact.header, {name: array.tobytes() for name, array in artifact.arrays.items()}


@pytest.mark.parametrize("name", FILES)
def test_an_edited_byte_is_refused_or_changes_nothing(run: Path, name: str) -> None:
    """Bytes outside the content (HDF5's own bookkeeping, times, versions) may pass; then nothing read may differ."""
    path = run / name
    before_header, before = content(path)
    whole = path.read_bytes()
    rng = random.Random(0)
    noticed = 0
    for _ in range(60):
        place = rng.randrange(len(whole))
        path.write_bytes(whole[:place] + bytes([whole[place] ^ (1 << rng.randrange(8))]) + whole[place + 1 :])
        try:
            header, arrays = content(path)
        except InputError:
            noticed += 1
        else:
            assert (header.config, header.metrics, header.key) == (
                before_header.config,
                before_header.metrics,
                before_header.key,
            )
            assert arrays == before
    assert noticed > 10


@pytest.mark.parametrize("name", FILES)
def test_a_file_cut_anywhere_is_refused(run: Path, name: str) -> None:
    whole = (run / name).read_bytes()
    for size in [0, 1, 7, 8, 9, 100, len(whole) // 3, len(whole) // 2, len(whole) - 2]:
        (run / name).write_bytes(whole[:size])
        with pytest.raises(InputError):
            artifacts.read_any(run / name)


@pytest.mark.parametrize("field", ["config", "seed", "metrics", "key", "stage"])
def test_an_edited_header_is_refused(run: Path, field: str) -> None:
    path = run / "dataset.h5"
    with h5py.File(path, "r+") as file:
        header = json.loads(file.attrs["smodice"])
        changed = {
            "config": {**header["config"], "absorbing": True},
            "seed": 7,
            "metrics": {},
            "key": "0",
            "stage": "x",
        }
        file.attrs["smodice"] = json.dumps(header | {field: changed[field]})
    assert "does not match its digest" in refuse(3, "train-disc", "--data", path, "--out", run / "new.safetensors")
    assert not (run / "new.safetensors").exists()


def test_a_newer_schema_is_refused_by_name(run: Path) -> None:
    path = run / "eval.json"
    whole = json.loads(path.read_text())
    whole["smodice"]["schema"] = artifacts.SCHEMA + 1
    path.write_text(json.dumps(whole))
    assert "newer than this version's" in refuse(3, "inspect", path)


def test_another_kind_is_refused_by_name(run: Path) -> None:
    said = refuse(3, "train-value", "--disc", run / "policy.safetensors", "--out", run / "new.safetensors")
    assert "is an artifact of the kind policy, where one of the kind disc is needed" in said


@pytest.mark.parametrize("text", [b"", b"hello", b"\x89HDF\r\n\x1a\nnonsense", b"{}", b'{"smodice": 3}', b"\0" * 99])
def test_what_is_no_artifact_is_refused(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "x").write_bytes(text)
    refuse(3, "inspect", tmp_path / "x")


def test_a_moved_run_folder_still_works(run: Path, tmp_path: Path) -> None:
    moved = shutil.move(run, tmp_path / "elsewhere" / "deeper")
    small = ("--steps", "5", "--set", "hidden=8", "--set", "batch=8")
    succeed("train-value", "--disc", moved / "disc.safetensors", *small)
    succeed("train-policy", "--value", moved / "value.safetensors", *small)
    assert {row["state"] for row in succeed("status", moved, "--json").json["artifacts"]} == {
        "ok",
        "stale: its policy has changed since",
    }


def test_a_dataset_made_anew_no_longer_fits_its_discriminator(run: Path) -> None:
    env = "pointmass-4direction"
    sources = ("--offline", f"sim:{env}#500", "--expert", f"sim:{env}#success=10")
    succeed("build-dataset", "--env", env, *sources, "--out", run / "dataset.h5")
    before = listing(run)
    said = refuse(3, "train-value", "--disc", run / "disc.safetensors")
    assert "is not the dataset that disc.safetensors was made with" in said
    assert listing(run) == before


def test_a_lost_input_is_named(run: Path) -> None:
    (run / "dataset.h5").unlink()
    assert "dataset.h5, which is not there" in refuse(3, "train-value", "--disc", run / "disc.safetensors")


def test_the_digest_ignores_time_place_and_order_but_nothing_else(tmp_path: Path) -> None:
    def written(name: str, header: Header, **tensors: torch.Tensor) -> str:
        return artifacts.write_safetensors(tmp_path / name, header, tensors).digest

    a, b = torch.arange(6.0), torch.ones(2)
    first = written("one", HEADER, a=a, b=b)
    assert written("two", Header(**{**HEADER.__dict__, "seconds": 9.0, "notes": ["x"]}), b=b, a=a) == first
    assert written("three", HEADER, a=b, b=a) != first
    assert written("three", HEADER, a=a.reshape(2, 3), b=b) != first
    assert written("three", HEADER, a=a.double(), b=b) != first
    assert written("three", Header(**{**HEADER.__dict__, "seed": 4}), a=a, b=b) != first


def test_what_is_written_is_what_is_read(tmp_path: Path) -> None:
    arrays = {"a/b": np.arange(12, dtype=np.int32).reshape(3, 4), "empty": np.zeros((0, 3), np.float32)}
    header = artifacts.write_hdf5(tmp_path / "x.h5", HEADER, arrays)
    found = artifacts.load(tmp_path / "x.h5", "disc")
    assert found.header == header
    assert {name: array.tolist() for name, array in found.arrays.items()} == {
        name: array.tolist() for name, array in arrays.items()
    }
    header = artifacts.write_json(tmp_path / "x.json", HEADER, {"score": {"mean": 1.5}})
    assert artifacts.load(tmp_path / "x.json", "disc").header == header
    assert artifacts.read_payload(tmp_path / "x.json") == {"score": {"mean": 1.5}}


def test_a_foreign_file_at_the_output_is_not_an_artifact(tmp_path: Path) -> None:
    assert artifacts.peek(tmp_path / "nothing") is None
    (tmp_path / "thesis.h5").write_text("four years of work")
    with pytest.raises(ForeignFileError):
        artifacts.peek(tmp_path / "thesis.h5")


# --- atomic writes ----------------------------------------------------------------------------------------------------

WRITER = """
import sys, pathlib, numpy as np
from smodice_cli import artifacts, files
target = pathlib.Path(sys.argv[1])
arrays = {"x": np.ones((4_000_000, 4), np.float32)}
header = artifacts.Header("disc", "train-disc", {}, 0)
with files.locked(target, print):
    files.remove_remains(target)
    print("go", flush=True)
    for seed in range(1000):
        artifacts.write_hdf5(target, header, arrays)
"""


@pytest.mark.parametrize("old", [True, False], ids=["an old file", "no old file"])
def test_a_kill_during_a_large_write_leaves_the_old_file_or_none(tmp_path: Path, old: bool) -> None:
    target = tmp_path / "big.h5"
    if old:
        artifacts.write_hdf5(target, HEADER, {"x": np.zeros(3)})
    before = target.read_bytes() if old else b""
    rng = random.Random(int(old))
    for _ in range(3):
        process = subprocess.Popen([sys.executable, "-c", WRITER, str(target)], stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        wait_for(lambda: list(tmp_path.glob(".big.h5.*.tmp")), every=0.001)
        time.sleep(rng.uniform(0, 0.03))
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        if before:
            assert target.exists(), "the old file is gone"
        if target.exists() and target.read_bytes() != before:
            assert digest(target)  # a whole new file: the kill came after the rename
            before = target.read_bytes()
    with files.locked(target, print):
        files.remove_remains(target)
    assert [path.name for path in tmp_path.iterdir()] == (["big.h5"] if before else [])


@pytest.mark.parametrize("lasting", [True, False])
def test_a_write_that_fails_inside_hdf5_is_one_error_and_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lasting: bool
) -> None:
    """Whichever it is: the library would crash, or say nothing and leave a torn file."""
    target, real, done, wrong = tmp_path / "x.h5", os.pwrite, [0], [0]

    def pwrite(*arguments: Any) -> int:
        done[0] += 1
        if wrong[0] and (done[0] == wrong[0] or (done[0] > wrong[0] and lasting)):
            raise OSError(errno.EIO, "Input/output error")
        return real(*arguments)

    monkeypatch.setattr(os, "pwrite", pwrite)
    arrays = {"x": np.ones(5000), "group/y": np.ones((3, 2)), "z": np.zeros((0, 3))}
    artifacts.write_hdf5(target, HEADER, arrays)
    before, writes = digest(target), done[0]
    assert writes > 5
    for number in range(1, writes + 1):
        done[0], wrong[0] = 0, number
        with pytest.raises(OutputError, match="Input/output error"):
            artifacts.write_hdf5(target, HEADER, {name: 2 * array for name, array in arrays.items()})
        assert (digest(target), os.listdir(tmp_path)) == (before, ["x.h5"])


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    def write() -> None:
        with files.atomic(tmp_path / "x") as temporary:
            temporary.write_text("half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write()
    assert not list(tmp_path.iterdir())


def test_remains_of_checkpoints_and_spools_are_removed_and_only_those(tmp_path: Path) -> None:
    for name in (".a.h5.12.tmp", ".a.h5.ckpt.7.tmp", ".b.h5.12.tmp", "a.h5.tmp", ".a.h5.ckpt"):
        (tmp_path / name).touch()
    (tmp_path / ".a.h5.xyz.tmp").mkdir()
    (tmp_path / ".a.h5.xyz.tmp" / "observations").touch()
    files.remove_remains(tmp_path / "a.h5")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".a.h5.ckpt", ".b.h5.12.tmp", "a.h5.tmp"]


def test_a_lock_leaves_no_file_and_no_empty_folder(tmp_path: Path) -> None:
    with files.locked(tmp_path / "new" / "folder" / "x", print):
        assert list((tmp_path / "new" / "folder").iterdir())
    assert not list(tmp_path.iterdir())


LOCKER = """
import sys, time, pathlib
from smodice_cli import artifacts, files
target = pathlib.Path(sys.argv[1])
counter = target.with_name("counter")
for _ in range(30):
    with files.locked(target, lambda pid: None):
        before = int(counter.read_text())
        time.sleep(0.001)
        counter.write_text(str(before + 1))
"""


def test_a_lock_admits_one_process_at_a_time(tmp_path: Path) -> None:
    (tmp_path / "counter").write_text("0")
    command = [sys.executable, "-c", LOCKER, str(tmp_path / "x")]
    processes = [subprocess.Popen(command) for _ in range(4)]
    assert [process.wait() for process in processes] == [0] * 4
    assert (tmp_path / "counter").read_text() == "120"
