"""What attacks from outside asked for: no code run, no wrong result, no hang, no remains, always a sentence."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from conftest import ENV, PATIENCE, SMALL, TINY, digest, refuse, smodice, succeed, wait_for, write_recipe
from recordings import policy_file, write_file
from safetensors.torch import save_file

from smodice_cli import artifacts, files
from smodice_cli.console import visible
from smodice_cli.engines import local
from smodice_cli.errors import OutputError
from smodice_cli.orders import Order

SMODICE = [sys.executable, "-P", "-m", "smodice_cli"]
EXPERT = ("--expert", f"sim:{ENV}#success=5")


def build(folder: Path, source: str | Path, *flags: str) -> tuple[str | Path, ...]:
    return ("build-dataset", "--env", ENV, "--offline", f"file:{source}", *EXPERT, "--out", folder / "new.h5", *flags)


# --- code that is not ours --------------------------------------------------------------------------------------------


def test_a_worker_imports_nothing_from_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "typer.py").write_text("open('executed', 'w')")
    monkeypatch.chdir(tmp_path)
    with open(os.devnull, "wb") as events:
        local.start(Order(tmp_path, "absent", "", "", {}), events.fileno()).communicate()
    assert not (tmp_path / "executed").exists()


def test_a_file_cannot_name_a_module_to_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "not_asked_for.py").write_text("raise SystemExit('executed')")
    monkeypatch.syspath_prepend(tmp_path)
    policy = policy_file(tmp_path / "policy.safetensors", ENV, header_env="gym:not_asked_for:X-v0")
    assert "runs the module 'not_asked_for'" in refuse(2, "eval", "--policy", policy)
    assert "not_asked_for" not in sys.modules


# --- results that would be wrong --------------------------------------------------------------------------------------


def test_a_policy_whose_header_lies_makes_no_data(run: Path) -> None:
    policy = run / "policy.safetensors"
    whole = bytearray(policy.read_bytes())
    whole[-5] ^= 1
    policy.write_bytes(whole)
    sources = ("--offline", f"sim:{ENV}@{policy}#30", *EXPERT)
    said = refuse(3, "build-dataset", "--env", ENV, *sources, "--out", run / "new.h5")
    assert "was changed after it was written" in said


def reaching(folder: Path, how: str) -> Path:
    """A recording whose observations lie in another file."""
    write_file(folder / "inner.hdf5")
    outer = write_file(folder / "outer.hdf5")
    with h5py.File(outer, "r+") as file:
        shape, dtype = file["observations"].shape, file["observations"].dtype
        del file["observations"]
        if how == "link":
            file["observations"] = h5py.ExternalLink("inner.hdf5", "observations")
        elif how == "virtual":
            layout = h5py.VirtualLayout(shape, dtype)
            layout[:] = h5py.VirtualSource("inner.hdf5", "observations", shape, dtype)
            file.create_virtual_dataset("observations", layout)
        else:
            raw = folder / "inner.hdf5"
            raw.write_bytes(np.random.default_rng(0).normal(size=shape).astype(dtype).tobytes())
            file.create_dataset("observations", shape, dtype, external=[(str(raw), 0, raw.stat().st_size)])
    return outer


@pytest.mark.parametrize("how", ["link", "virtual", "raw"])
def test_a_recording_that_reaches_into_other_files(tmp_path: Path, how: str) -> None:
    outer = reaching(tmp_path, how)
    assert "takes its numbers from other files" in refuse(3, *build(tmp_path, outer))
    allowed = build(tmp_path, outer, "--allow-links")
    succeed(*allowed)
    assert succeed(*allowed, "--json").json["status"] == "cached"
    inner = tmp_path / "inner.hdf5"
    if how == "raw":
        inner.write_bytes((2 * np.frombuffer(inner.read_bytes())).tobytes())
    else:
        write_file(inner, rewards=np.ones(60))
    assert succeed(*allowed, "--json").json["status"] == "done", "what it reaches is part of the key"
    inner.unlink()
    assert "which is not there" in refuse(3, *allowed)


def test_an_edited_score_is_not_reported(run: Path, tmp_path: Path) -> None:
    whole = json.loads((run / "eval.json").read_text())
    whole["score"]["normalized"] = 99.9
    (run / "eval.json").write_text(json.dumps(whole))
    outcome = succeed("report", run, "--html", tmp_path / "r.html", "--json")
    assert "does not match its digest: left out" in outcome.stderr
    assert outcome.json["runs"][0]["score"] is None


def test_the_summary_is_of_all_seeds_and_of_these_settings_alone(tmp_path: Path) -> None:
    recipe, out = write_recipe(tmp_path / "tiny.toml", TINY), tmp_path / "run"
    first = succeed("run", recipe, "--out", out, "--json").json
    assert first["normalized_std"] is None
    second = succeed("run", recipe, "--out", out, "--seeds", "1", "--json").json
    assert (second["seeds"], list(second["per_seed"]), second["missing"]) == ([0, 1], ["0", "1"], [])
    assert second["per_seed"]["0"] == first["per_seed"]["0"]
    assert second["keys"]["1"] == artifacts.read_header(out / "seed1/eval.json").key
    refuse(6, "run", recipe, "--out", out, "--seeds", "1", "--set", "disc.lr=1e38")
    third = json.loads((out / "summary.json").read_text())
    assert (third["per_seed"], third["missing"]) == ({}, [1])
    assert [(score["method"], score["seed"]) for score in third["other_settings"]] == [("smodice", 0), ("smodice", 1)]


# --- streams ----------------------------------------------------------------------------------------------------------


def test_work_goes_on_when_nobody_reads_its_messages(run: Path) -> None:
    command = [*SMODICE, "train-disc", "--data", str(run / "dataset.h5"), "--steps", "5", *SMALL]
    process = subprocess.Popen([*command, "--out", str(run / "new.safetensors")], stderr=subprocess.PIPE)
    assert process.stderr is not None
    process.stderr.close()
    assert process.wait() == 0
    assert digest(run / "new.safetensors")


@pytest.mark.parametrize(
    ("shell", "code"),
    [
        ("settings >/dev/full", 3),
        ("--help >/dev/full", 3),
        ("settings --json >&-", 0),
        ("envs 2>&- >/dev/null", 0),
        ("inspect absent 2>&-", 3),
        ("inspect absent 2>/dev/full", 3),
    ],
)
def test_streams_that_are_full_or_closed(shell: str, code: int) -> None:
    done = subprocess.run(f"{' '.join(SMODICE)} {shell}", shell=True, capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr


def test_what_we_start_has_streams_too(run: Path) -> None:
    """MuJoCo's import asks a process of its own where a library is."""
    scored = f"eval --policy {run}/policy.safetensors --episodes 1 --set curve_episodes=0 --threads 1"
    command = f"{' '.join(SMODICE)} {scored} --out {run}/new.json <&- >&- 2>&-"
    assert subprocess.run(command, shell=True).returncode == 0
    assert digest(run / "new.json")


def test_control_characters_do_not_reach_the_terminal(tmp_path: Path) -> None:
    assert visible("a\x1b[31m\u202eb") == "a\\x1b[31m\\u202eb"
    with h5py.File(tmp_path / "x.hdf5", "w") as file:
        file["\x1b[2Jobservation"] = np.ones(3)
    assert "\x1b" not in refuse(3, *build(tmp_path, tmp_path / "x.hdf5"))


@pytest.mark.parametrize("delay", [0.0, 0.05, 0.2, 0.5, 0.9])
def test_an_early_interrupt_is_one_clean_end(run: Path, delay: float) -> None:
    """From the moment on that the program is there at all, torch's import included."""
    command = [*SMODICE, "train-disc", "--data", str(run / "dataset.h5"), "--steps", "500000", *SMALL]
    process = subprocess.Popen([*command, "--out", str(run / "new.safetensors")], stderr=subprocess.PIPE, text=True)
    caught = f"/proc/{process.pid}/status"
    term = 1 << (signal.SIGTERM - 1)
    wait_for(lambda: int(Path(caught).read_text().split("SigCgt:")[1].split()[0], 16) & term)
    time.sleep(delay)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, said
    assert "Traceback" not in said


DROPPED = {
    "in the callback of a weak reference": """
        class Thing: pass
        thing = Thing()
        kept = weakref.ref(thing, lambda _: interrupt())
        del thing
    """,
    "by a library": """
        try: interrupt()
        except: pass
    """,
    "in a callback of C": """
        ctypes.CFUNCTYPE(None)(interrupt)()
    """,
    "in a generator that is closed": """
        def generator():
            try: yield
            finally: interrupt()
        next(opened := generator())
        del opened
    """,
}


@pytest.mark.parametrize("how", DROPPED)
def test_an_interrupt_that_is_dropped_comes_again(how: str) -> None:
    program = """if True:
        import ctypes, os, signal, sys, time, weakref
        from smodice_cli.cli import guard
        def interrupt():
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0)
        def work():
            DROPPED
            while True: time.sleep(0.01)
        try: guard(work)
        except Exception as end: sys.exit(end.exit_code)
    """
    program = program.replace("DROPPED", DROPPED[how].strip().replace("\n", "\n    "))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stderr.splitlines()[0]) == (130, "error: interrupted"), done.stderr


def test_what_cleans_up_after_an_interrupt_is_not_interrupted_again() -> None:
    """Neither a `finally` nor a generator that goes with the frame: both may take longer than the next try."""
    program = """if True:
        import os, signal, sys, time
        from smodice_cli.cli import guard
        def slowly(word):
            for _ in range(30): time.sleep(0.01)
            print(word, flush=True)
        def generator():
            try: yield
            finally: slowly("generator")
        def inner():
            opened = generator()
            next(opened)
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(60)
        def work():
            try: inner()
            except KeyboardInterrupt: raise RuntimeError("as a library tells it")
            finally: slowly("finally")
        try: guard(work)
        except Exception as end: sys.exit(end.exit_code)
    """
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stdout.split()) == (130, ["finally", "generator"]), done.stderr
    assert done.stderr.startswith("error: interrupted")


# --- hangs, memory, remains -------------------------------------------------------------------------------------------


def test_a_place_where_no_lock_can_be_made(run: Path) -> None:
    data = ("train-disc", "--data", run / "dataset.h5", "--steps", "5", *SMALL, "--out")
    assert "cannot write /proc/x.safetensors" in refuse(3, *data, "/proc/x.safetensors")
    (run / ".new.safetensors.lock").symlink_to("nowhere")
    assert "is a symbolic link" in refuse(3, *data, run / "new.safetensors")


def test_a_lock_whose_holder_is_no_text_is_waited_for(tmp_path: Path) -> None:
    lock = files.lock_of(tmp_path / "x")
    lock.write_bytes(b"\xff\xfe")
    handle = os.open(lock, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    waited: list[str] = []

    def told(holder: str) -> None:
        waited.append(holder)
        os.close(handle)

    with files.locked(tmp_path / "x", told):
        assert len(waited) == 1


def test_a_file_system_without_locks_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which no test can mount: only the answer of its flock is made up."""

    def none(handle: int, how: int) -> None:
        raise OSError(files.errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", none)
    warned: list[str] = []
    monkeypatch.setattr(files.console, "warn", warned.append)
    with files.locked(tmp_path / "x", print), files.atomic(tmp_path / "x") as temporary:
        temporary.write_text("whole")
    assert (tmp_path / "x").read_text() == "whole"
    assert "has no locks" in warned[0]


@pytest.mark.skipif(os.getuid() != 0, reason="another user can be played by root alone")
def test_the_lock_of_another_user_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    for parent in list(tmp_path.parents)[:3]:
        parent.chmod(parent.stat().st_mode | 0o055)
    lock = files.lock_of(tmp_path / "x")
    lock.touch(0o600)
    pid = os.fork()
    if not pid:
        os.setuid(65534)
        try:
            with files.locked(tmp_path / "x", print):
                os._exit(1)
        except OutputError as error:
            os._exit(0 if "the lock of another user (number 0)" in error.message else 2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_pipes_are_not_read(run: Path, tmp_path: Path) -> None:
    for name in ("x.h5", "policy.safetensors", "log.hdf5"):
        os.mkfifo(tmp_path / name)
    states = {row["path"]: row["state"] for row in succeed("status", tmp_path, "--json").json["artifacts"]}
    assert "is no regular file" in states["x.h5"]
    assert "is no regular file" in refuse(3, "eval", "--policy", tmp_path / "policy.safetensors")
    assert "is no regular file" in refuse(3, *build(run, tmp_path / "log.hdf5"))
    assert "is no regular file" in refuse(3, "run", tmp_path / "log.hdf5", "--out", run / "new")
    assert "is no regular file" in refuse(3, "tabular", tmp_path / "log.hdf5", "--out", run / "t.h5")


def test_files_that_name_each_other_are_listed_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"{number}.json" for number in range(40)]
    for name in names:
        others = {other: artifacts.Link(other, "d") for other in names}
        header = artifacts.Header("eval", "eval", {}, 0, others)
        artifacts.write_json(tmp_path / name, header, {})
    looks: list[Path] = []
    look = artifacts._read
    monkeypatch.setattr(artifacts, "_read", lambda path: looks.append(path) or look(path))
    rows = succeed("status", tmp_path, "--json").json["artifacts"]
    assert len(rows) == 40
    assert len(looks) < 100 * len(names), "not one for every way from file to file"


def test_what_a_file_declares_is_not_taken_for_what_it_holds(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.hdf5", "w") as file:
        for name, width in (("observations", 4), ("actions", 2)):
            file.create_dataset(name, (300_000_000, width), "f4", chunks=(1000, width))
        for name in ("terminals", "timeouts", "rewards"):
            file.create_dataset(name, (300_000_000,), bool, chunks=(1000,))
    assert (tmp_path / "x.hdf5").stat().st_size < 20_000
    assert "are stored" in refuse(3, *build(tmp_path, tmp_path / "x.hdf5"))
    with zipfile.ZipFile(tmp_path / "x.npz", "w", zipfile.ZIP_DEFLATED) as archive, archive.open("a.npy", "w") as entry:
        for _ in range(320):
            entry.write(bytes(1 << 20))
    assert "are stored" in refuse(3, *build(tmp_path, tmp_path / "x.npz"))


def test_a_cached_run_clears_what_is_dead_and_only_that(run: Path) -> None:
    command = ("train-disc", "--data", run / "dataset.h5", "--steps", "40", *SMALL)
    dead = [run / f".disc.{name}" for name in ("safetensors.lock", "safetensors.0a1b2c3d.tmp", "log.jsonl.99.tmp")]
    for path in dead:
        path.touch()
    alive = run / ".disc.safetensors.ffffffff.tmp"
    alive.mkdir()
    handle = os.open(alive, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    assert succeed(*command, "--json").json["status"] == "cached"
    assert [path for path in run.iterdir() if path.name.startswith(".")] == [alive]
    assert succeed("status", run, "--clean", "--json").json["removed"] == []
    os.close(handle)
    assert succeed("status", run, "--clean", "--json").json["removed"] == [alive.name]
    assert not alive.exists()


def test_a_temporary_file_follows_no_link(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("mine")
    (tmp_path / f".x.{os.getpid()}.tmp").symlink_to("victim")
    with files.atomic(tmp_path / "x") as temporary:
        assert temporary.exists(), "made by us, and by nobody else"
        temporary.write_text("new")
    assert (tmp_path / "victim").read_text() == "mine"


# --- a sentence where there was an internal error ---------------------------------------------------------------------


def npz(path: Path, **entries: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in entries.items():
            archive.writestr(f"{name}.npy", content)
    return path


HEADER = "{'descr': '<f4', 'fortran_order': False, 'shape': (%s), }"


@pytest.mark.parametrize("shape", ["99999999999999999999,4", "-3,4", "4", "0,0", "[],", "1" * 5000])
def test_an_npz_with_an_absurd_shape(tmp_path: Path, shape: str) -> None:
    text = (HEADER % shape).encode()
    column = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(64)
    refuse(3, *build(tmp_path, npz(tmp_path / "x.npz", observations=column, actions=column)))


def test_hdf5_with_strange_members(tmp_path: Path) -> None:
    refuse(3, *build(tmp_path, write_file(tmp_path / "a.hdf5", actions=np.ones((60, 0)))))
    with h5py.File(write_file(tmp_path / "b.hdf5"), "r+") as file:
        del file["actions"]
        file["actions"] = np.dtype("f8")
    refuse(3, *build(tmp_path, tmp_path / "b.hdf5"))
    with h5py.File(tmp_path / "c.hdf5", "w") as file:
        file.create_group(b"\xff\xfe")
    refuse(3, *build(tmp_path, tmp_path / "c.hdf5"))


def test_hdf5_that_holds_itself(tmp_path: Path) -> None:
    """By links of every kind; and a name that is no text."""
    with h5py.File(write_file(tmp_path / "x.hdf5"), "r+") as file:
        file["again"], file["lost"] = file["/"], h5py.SoftLink("/nowhere")
        file["outside"] = h5py.ExternalLink("x.hdf5", "/")
        file[b"\xff"] = np.ones(3)
    holds = succeed("inspect", tmp_path / "x.hdf5", "--json").json["holds"]
    assert (holds["lost"], holds["observations"], holds[repr(b"\xff")]) == ("no array", "60 x 4 float64", "3 float64")
    assert len(holds) < 20
    succeed(*build(tmp_path, tmp_path / "x.hdf5"))


def test_json_that_is_nested_deep(tmp_path: Path) -> None:
    for number, text in enumerate(('{"smodice":' * 9000, '{"smodice":{"metrics":' + "[" * 500 + "]" * 500 + "}}")):
        (tmp_path / f"{number}.json").write_text(text)
        refuse(3, "inspect", tmp_path / f"{number}.json")
    assert len(succeed("status", tmp_path, "--json").json["artifacts"]) == 2


@pytest.mark.parametrize("member", [{"seconds": "long"}, {"notes": [3]}, {"versions": [1]}, {"inputs": {"x": 3}}])
def test_a_header_with_members_of_another_type(run: Path, member: dict[str, object]) -> None:
    """Outside the digest, where a change is not noticed by it."""
    whole = json.loads((run / "eval.json").read_text())
    whole["smodice"] |= member
    (run / "eval.json").write_text(json.dumps(whole))
    assert "unreadable header" in refuse(3, "inspect", run / "eval.json")
    assert "unreadable header" in json.dumps(succeed("status", run, "--json").json)


@pytest.mark.parametrize("number", ["NaN", "1e999"])
def test_a_header_with_numbers_that_are_none(run: Path, number: str) -> None:
    with h5py.File(run / "weights.h5", "r+") as file:
        text = file.attrs["smodice"].decode()
        file.attrs["smodice"] = text.replace('"metrics":{', f'"metrics":{{"a":{number},')
    assert "unreadable header" in refuse(3, "inspect", run / "weights.h5")
    assert "unreadable header" in json.dumps(succeed("status", run, "--json").json)


def test_a_damaged_log_beside_a_good_checkpoint(run: Path) -> None:
    command = ("train-disc", "--data", run / "dataset.h5", "--out", run / "new.safetensors", *SMALL)
    succeed(*command, "--steps", "300")
    expected, log = digest(run / "new.safetensors"), (run / "new.log.jsonl").read_text()
    held = artifacts.load(run / "new.safetensors", "disc").header.key
    (run / "new.safetensors").unlink()
    succeed(*command, "--steps", "300", "--checkpoint-every", "0")
    assert digest(run / "new.safetensors") == expected
    (run / "new.safetensors").unlink()
    stopped = subprocess.Popen([*SMODICE, *map(str, command), "--steps", "300", "--checkpoint-every", "0"])
    checkpoint = run / ".new.safetensors.ckpt"
    wait_for(lambda: checkpoint.exists() or stopped.poll() is not None)
    stopped.kill()
    stopped.wait()
    assert checkpoint.exists()
    assert artifacts.read_header(checkpoint).key == held
    (run / "new.log.jsonl").write_bytes(b'{"step": 100, "loss"\n\xff\xfe\n[]\n{"step": "x"}\n' + log.encode())
    outcome = succeed(*command, "--steps", "300")
    assert "resuming" in outcome.stderr
    assert digest(run / "new.safetensors") == expected


def test_foreign_policies_that_do_not_fit(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    whole = load_file(policy_file(tmp_path / "good.safetensors", ENV))
    changed = {
        "bf16": {name: tensor.bfloat16() for name, tensor in whole.items()},
        "shapes": whole | {"body.2.weight": torch.ones(8, 3)},
        "nan": whole | {"mean.bias": torch.full((2,), torch.nan)},
    }
    for name, tensors in changed.items():
        save_file(tensors, tmp_path / f"{name}.safetensors")
        source = f"sim:{ENV}@{tmp_path}/{name}.safetensors#30"
        refuse(3, "build-dataset", "--env", ENV, "--offline", source, *EXPERT, "--out", tmp_path / "new.h5")


@pytest.mark.parametrize(
    ("code", "flags"),
    [
        (4, ("--env", "gym::")),
        (2, ("--expert-dims", "0:99999999999999999999")),
        (2, ("--expert-dims", "-99999999999999:1")),
        (2, ("--offline", f"sim:{ENV}#{'9' * 5000}")),
        (2, ("--sha256", "absent=1")),
    ],
)
def test_data_flags_that_mean_nothing(tmp_path: Path, code: int, flags: tuple[str, ...]) -> None:
    sources = ("--offline", f"sim:{ENV}#50", *EXPERT, "--out", tmp_path / "new.h5")
    refuse(code, "build-dataset", "--env", ENV, *sources, *flags)


@pytest.mark.parametrize("device", ["meta", "mps", "gpu", "cpu:99999999999999999999"])
def test_a_device_that_cannot_train(run: Path, device: str) -> None:
    outcome = smodice("train-disc", "--data", run / "dataset.h5", "--out", run / "x.safetensors", "--device", device)
    assert outcome.code == 3
    assert "there is: cpu" in outcome.stderr


def test_numbers_and_links_without_end(run: Path, tmp_path: Path) -> None:
    train = ("train-disc", "--data", run / "dataset.h5", "--out", run / "x.safetensors", "--set")
    refuse(4, *train, f"lr={'9' * 5000}")
    refuse(4, *train, f"lr={'9' * 400}")
    refuse(6, "tabular", "example", "--size", "3", "--alpha", "1e-300", "--out", tmp_path / "t.h5")
    (tmp_path / "loop").symlink_to("loop")
    refuse(3, "inspect", tmp_path / "loop")
    refuse(3, *build(tmp_path, tmp_path / "loop"))


def test_the_sum_of_a_file_can_be_pinned(tmp_path: Path) -> None:
    path = write_file(tmp_path / "log.hdf5")
    wrong, right = "0" * 64, files.sha256(path)
    said = refuse(3, *build(tmp_path, path, "--sha256", f"{path}={wrong}"))
    assert right in said
    succeed(*build(tmp_path, path, "--sha256", f"{path}={right}"))
    shutil.rmtree(tmp_path)
