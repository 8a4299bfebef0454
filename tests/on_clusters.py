"""Runs on real clusters of this machine, a Slurm and a Ray one with two nodes each: `make test-cluster`.

Named so that `make test` leaves it out: it fetches Slurm and Ray, and starts daemons. SMODICE_KILLS (default 4) is how
many times something is killed during a run on each of them; what was killed is printed.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from conftest import TINY, listing, wait_for, write_recipe
from slurm_cluster import CannotRunError, Cluster

from smodice_cli import artifacts
from smodice_cli.orders import Report
from smodice_cli.views import runs

SMODICE = [sys.executable, "-m", "smodice_cli"]
KILLS = int(os.environ.get("SMODICE_KILLS", "4"))
PATIENCE = 900  # seconds for a run on a busy machine
SEEDS = ("--seeds", "0-2", "--algo", "smodice,oril", "--checkpoint-every", "0.5")
SLOW = ("--set", "policy.steps=3000")  # long enough to be killed in


def recipes(folder: Path) -> list[Path]:
    small = TINY | {"policy": TINY["policy"] | {"steps": 300}, "eval": {"episodes": 2, "curve_episodes": 1}}
    other = small | {"dataset": TINY["dataset"] | {"offline": ["sim:pointmass-4direction#700"]}}
    return [write_recipe(folder / "first.toml", small), write_recipe(folder / "second.toml", other)]


def smodice(*words: str | Path, env: dict[str, str] | None = None, code: int = 0) -> subprocess.CompletedProcess[str]:
    """A command as a process of its own, which must end with this code and without a traceback."""
    done = subprocess.run(
        [*SMODICE, *map(str, words)],
        env=env,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    return done


def sentence(done: subprocess.CompletedProcess[str]) -> str:
    """The one sentence that a command failed with."""
    (error,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    return error


def digests(folder: Path) -> dict[str, str]:
    """The content digest of every artifact below a folder, each of them whole and current."""
    rows = [(run, row) for run in sorted(folder.iterdir()) for row in runs.status(run)]
    assert {row["state"] for _, row in rows} == {"ok"}, rows
    return {f"{run.name}/{row['path']}": artifacts.read_header(run / row["path"]).digest for run, row in rows}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("clusters")


@pytest.fixture(scope="module")
def here(home: Path) -> dict[str, str]:
    """What twelve chains make in processes of this machine."""
    smodice("run", *recipes(home), *SEEDS, "--jobs", "2", "--out", home / "here")
    found = digests(home / "here")
    assert len([path for path in found if path.endswith("eval.json")]) == 12
    return found


@pytest.fixture(scope="module")
def here_slow(home: Path) -> dict[str, str]:
    smodice("run", *recipes(home), *SEEDS, *SLOW, "--jobs", "2", "--out", home / "here-slow")
    return digests(home / "here-slow")


def states(folder: Path, env: dict[str, str]) -> dict[str, str]:
    """Every order of some runs and its state, as `smodice status` tells."""
    told = json.loads(smodice("status", *sorted(folder.iterdir()), "--json", env=env).stdout)
    return {f"{Path(row['run']).name} {row['order']}": row["state"] for run in told["runs"] for row in run["orders"]}


# --- Slurm ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def slurm(home: Path) -> Iterator[Cluster]:
    """A controller and two nodes."""
    try:
        cluster = Cluster(home / "slurm")
    except CannotRunError as error:
        pytest.skip(str(error))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def test_twelve_chains_on_slurm_equal_those_of_this_machine(home: Path, here: dict[str, str], slurm: Cluster) -> None:
    """Submitted, left alone, looked at, summed up; again, nothing is submitted."""
    out, command = (
        home / "slurm-runs",
        ("run", *recipes(home), *SEEDS, "--on", "slurm:main", "--out", home / "slurm-runs"),
    )
    told = json.loads(smodice(*command, "--json", env=slurm.env).stdout)
    assert told["folders"] == [str(out / "first"), str(out / "second")]
    assert set(states(out, slurm.env).values()) <= {"queued", "running", "done"}
    wait_for(lambda: not slurm.queue(), PATIENCE)
    found = states(out, slurm.env)
    assert set(found.values()) == {"done"}, found
    assert len(found) == 2 * (1 + 3 + 6), "data, what the chains of a seed share, and the chains"
    assert digests(out) == here
    summary = json.loads((out / "first/summary.json").read_text())
    assert [(row["method"], row["missing"]) for row in summary["methods"]] == [("smodice", []), ("oril", [])]
    before = {path: times for path, times in listing(out).items() if "summary" not in path}
    assert "run" in smodice(*command, env=slurm.env).stdout, "the table of scores"
    assert {path: times for path, times in listing(out).items() if "summary" not in path} == before


def until_done(
    command: tuple[str | Path, ...], *more: str, slurm: Cluster, meanwhile: Callable[[], object] = int
) -> None:
    """Run a command on Slurm to its end, without the two minutes that it leaves between attempts."""
    running = subprocess.Popen([*SMODICE, *map(str, command), *more, "--wait"], env=slurm.env)
    while running.poll() is None:
        slurm.hurry()
        meanwhile()
        time.sleep(1)
    assert running.returncode == 0


def test_a_time_limit_hit_twice_changes_no_byte(home: Path, slurm: Cluster) -> None:
    """The limit is a minute, and the warning a minute before it comes with Slurm's next look at its clock."""
    recipe = recipes(home)[0]
    slow = ("--set", "policy.steps=15000", "--set", "eval.curve_episodes=0")
    smodice("run", recipe, *slow, "--out", home / "limit/here/first")
    command = ("run", recipe, *slow, "--checkpoint-every", "0", "--out", home / "limit/slurm/first", "--on", "slurm")
    report = Report(home / "limit/slurm/first/orders/seed0.jsonl")

    def lift() -> None:  # once it was hit twice: how often more depends on the machine
        report.news()
        if report.ends.count(75) >= 2:
            for line in slurm.queue():
                slurm.call("scontrol", "update", f"JobId={line.split()[0]}", "TimeLimit=60", check=False)

    until_done(command, "--on-set", "time=1", slurm=slurm, meanwhile=lift)
    report.news()
    assert report.ends.count(75) >= 2, report
    assert report.kills == 0
    assert report.ends[-1] == 0
    assert digests(home / "limit/slurm") == digests(home / "limit/here")


def test_a_chain_that_fails_by_itself_is_told_once_and_stops_no_other(home: Path, slurm: Cluster) -> None:
    out = home / "failing/first"
    out.mkdir(parents=True)
    (out / "seed1").write_text("a file where a folder should be")
    command = ("run", recipes(home)[0], "--seeds", "0-2", "--out", out, "--on", "slurm", "--wait")
    done = smodice(*command, env=slurm.env, code=3)
    assert sentence(done).startswith("error: seed 1: cannot write")
    assert done.stderr.count("cannot write") == 1
    told = json.loads((out / "summary.json").read_text())
    assert (list(told["per_seed"]), told["missing"]) == (["0", "2"], [1])
    wait_for(lambda: not slurm.queue(), 60)


def test_a_dataset_that_fails_leaves_nothing_queued(home: Path, slurm: Cluster) -> None:
    """Files of D4RL's that are not there, with no way to its server: nothing answers at the proxy."""
    data = {"env": "hopper", "offline": ["hopper-random-v2"], "expert": ["hopper-expert-v2#traj=0"]}
    recipe, out = write_recipe(home / "nodata.toml", TINY | {"dataset": data}), home / "nodata"
    nothing = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
    env = {**slurm.env, **nothing, "D4RL_DATASET_DIR": str(home / "d4rl"), "no_proxy": "", "NO_PROXY": ""}
    done = smodice("run", recipe, "--seeds", "0-1", "--on", "slurm", "--out", out, "--wait", env=env, code=3)
    assert sentence(done).startswith("error: data: ")
    wait_for(lambda: not slurm.queue(), 60)
    rows = json.loads(smodice("status", out, "--json", env=env).stdout)["orders"]
    assert [row["state"] for row in rows] == ["failed", "not started", "not started"]


def cancel_and_go_on(home: Path, name: str, env: dict[str, str], on: str, end: Callable[[Path], None]) -> None:
    """Start a long run, end it while it trains, find every file valid, and go on to the same bytes."""
    recipe, out = recipes(home)[0], home / name / "first"
    slow = ("--seeds", "0-2", "--set", "policy.steps=6000", "--set", "eval.curve_episodes=0")
    if not (home / "cancel-here").exists():
        smodice("run", recipe, *slow, "--out", home / "cancel-here/first")
    command = ("run", recipe, *slow, "--out", out, "--on", on)
    running = subprocess.Popen(
        [*SMODICE, *map(str, command), "--checkpoint-every", "0"], env=env, stderr=subprocess.PIPE
    )
    wait_for(lambda: list(out.glob("seed*/.policy.safetensors.ckpt")), PATIENCE)
    end(out)
    running.communicate(timeout=PATIENCE)
    found = {row["path"]: row["state"] for row in runs.status(out)}
    assert any(state.startswith("unfinished, at step") for state in found.values()), found
    assert all(state == "ok" or state.startswith("unfinished") for state in found.values()), found
    smodice(*command, *(["--wait"] if on == "slurm" else []), env=env)
    assert digests(home / name) == digests(home / "cancel-here")


def test_cancelled_on_slurm_files_are_valid_and_the_run_goes_on(home: Path, slurm: Cluster) -> None:
    def end(out: Path) -> None:
        smodice("cancel", out, env=slurm.env)
        wait_for(lambda: not slurm.queue(), 60)
        rows = json.loads(smodice("status", out, "--json", env=slurm.env).stdout)["orders"]
        assert {row["state"] for row in rows} == {"done", "cancelled"}

    cancel_and_go_on(home, "cancel-slurm", slurm.env, "slurm", end)


def test_the_same_orders_are_not_queued_twice(home: Path, slurm: Cluster) -> None:
    command = ("run", recipes(home)[0], "--seeds", "0-1", "--out", home / "twice", "--on", "slurm")
    slurm.call("scontrol", "update", "PartitionName=main", "State=DOWN")
    try:
        smodice(*command, env=slurm.env)
        queued = slurm.queue()
        assert len(queued) == 3, "the data and two chains"
        smodice(*command, env=slurm.env)
        assert len(slurm.queue()) == 3
        done = smodice(*command, "--set", "policy.steps=7", env=slurm.env, code=3)
        assert "is queued with other settings" in sentence(done)
        smodice("cancel", home / "twice", env=slurm.env)
        wait_for(lambda: not slurm.queue(), 60)
    finally:
        slurm.call("scontrol", "update", "PartitionName=main", "State=UP")


def test_bad_input_of_slurm_is_one_sentence_and_leaves_nothing_queued(home: Path, slurm: Cluster) -> None:
    command = ("run", *recipes(home), "--seeds", "0-1", "--out", home / "bad")
    for words, code, told in (
        (("--on", "slurm:absent"), 2, "no such partition"),
        (("--on", "slurm", "--on-set", "nonsense=1"), 3, "sbatch: unrecognized option '--nonsense=1'"),
        (("--on", "slurm", "--on-set", "time=never"), 3, "Invalid --time specification"),
        (("--on", "slurm", "--on-set", "array=1"), 2, "smodice sets that itself"),
        (("--on", "slurm", "--fail-fast"), 2, "needs somebody who watches"),
        (("--on", "slurm", "--jobs", "2"), 2, "--jobs is for --on local"),
    ):
        assert told in sentence(smodice(*command, *words, env=slurm.env, code=code))
    nowhere = {**slurm.env, "PATH": "/nowhere"}
    assert "there is no sbatch on this machine" in sentence(smodice(*command, "--on", "slurm", env=nowhere, code=2))
    wait_for(lambda: not slurm.queue(), 60)
    assert not (home / "bad").exists()


def test_a_folder_that_the_nodes_do_not_see_is_named(home: Path, slurm: Cluster) -> None:
    """In a mount of our own, which the daemons do not see."""
    unseen = home / "unseen"
    unseen.mkdir()
    words = ["unshare", "--mount", "sh", "-c", f'mount -t tmpfs none {unseen} && exec "$@"', "sh"]
    if subprocess.run([*words, "true"], capture_output=True).returncode:
        pytest.skip("no mount of its own can be made here")
    command = ("run", recipes(home)[0], "--seeds", "0-1", "--out", unseen / "run", "--on", "slurm", "--wait")
    done = subprocess.run([*words, *SMODICE, *map(str, command)], env=slurm.env, capture_output=True, text=True)
    assert done.returncode == 3, done.stderr
    assert "must be on a disk that every node shares" in sentence(done)
    wait_for(lambda: not slurm.queue(), 60)


# --- Ray ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ray_cluster(home: Path) -> Iterator[Any]:
    """A head without work and two nodes."""
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'smodice[ray]'")
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 (Ray's name): otherwise a busy machine starves them
    from ray.cluster_utils import Cluster as RayCluster

    small = {"object_store_memory": 80 << 20}
    cluster = RayCluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, **small})
    try:
        cluster.spare = [cluster.add_node(num_cpus=1, **small) for _ in range(2)]
        yield cluster
    finally:
        cluster.shutdown()


def test_twelve_chains_on_ray_equal_those_of_this_machine(home: Path, here: dict[str, str], ray_cluster: Any) -> None:
    out = home / "ray-runs"
    smodice("run", *recipes(home), *SEEDS, "--on", f"ray:{ray_cluster.address}", "--out", out)
    assert digests(out) == here
    assert set(states(out, dict(os.environ)).values()) == {"done"}


def test_interrupted_on_ray_files_are_valid_and_the_run_goes_on(home: Path, ray_cluster: Any) -> None:
    environment = dict(os.environ)
    end = lambda out: smodice("cancel", out)  # noqa: E731
    cancel_and_go_on(home, "cancel-ray", environment, f"ray:{ray_cluster.address}", end)


def test_a_ray_address_where_nobody_answers_is_one_sentence(home: Path) -> None:
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'smodice[ray]'")
    command = ("run", *recipes(home), "--seeds", "0-1", "--out", home / "bad-ray", "--on")
    assert "nothing answers there" in sentence(smodice(*command, "ray:127.0.0.1:9", code=3))
    assert "Ray takes num_cpus" in sentence(smodice(*command, "ray", "--on-set", "colour=1", code=2))
    assert not (home / "bad-ray").exists()


# --- kills ----------------------------------------------------------------------------------------------------------


def workers(name: str) -> list[int]:
    """The processes that do orders below the folder of this name."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (process / "cmdline").read_bytes()
            if b"smodice_cli\0work\0" in words and f"/{name}/".encode() in words:
                found.append(int(process.name))
    return found


def parent_of(pid: int) -> int:
    """The process that started one; 0 where it has gone."""
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


def kill(pids: list[int], rng: random.Random) -> bool:
    with suppress(ProcessLookupError):
        if pids:
            os.kill(rng.choice(pids), signal.SIGKILL)
            return True
    return False


def test_random_kills_on_slurm_change_no_byte(home: Path, here_slow: dict[str, str], slurm: Cluster) -> None:
    """A worker, a step of Slurm's, or a whole node at a time; with what is left undone the same command goes on."""
    out, rng = home / "kills-slurm", random.Random(0)
    command = ("run", *recipes(home), *SEEDS, *SLOW, "--on", "slurm", "--out", out)
    kinds: list[str] = []
    submitted = 0
    while len(kinds) < KILLS or slurm.queue():
        slurm.hurry()
        if any("held" in line for line in slurm.queue()):
            smodice(*command, env=slurm.env)
        if not slurm.queue():
            submitted += 1
            smodice(*command, *(["--force"] if submitted > 1 and len(kinds) < KILLS else []), env=slurm.env)
        time.sleep(rng.uniform(1, 8))
        if len(kinds) >= KILLS:
            continue
        kind = rng.choice(["worker", "worker", "step", "node"])
        if kind == "node":
            node = rng.choice(["n1", "n2"])
            if not slurm.workers(node):
                continue
            slurm.kill_node(node)
            time.sleep(rng.uniform(0, 5))
            slurm.start_node(node)
        elif kind == "step" and (steps := slurm.steps()):
            with suppress(OSError):
                slurm.kill_step(rng.choice(steps))
        elif kind == "step" or not kill(workers("kills-slurm"), rng):
            continue
        kinds.append(kind)
    until_done(command, slurm=slurm)
    print(f"killed: {kinds}; submitted {submitted} times")
    assert digests(out) == here_slow


def test_random_kills_on_ray_change_no_byte(home: Path, here_slow: dict[str, str], ray_cluster: Any) -> None:
    """A worker, the process of Ray's that watches it, or a whole node."""
    out, rng = home / "kills-ray", random.Random(1)
    command = ("run", *recipes(home), *SEEDS, *SLOW, "--on", f"ray:{ray_cluster.address}", "--out", out)
    kinds: list[str] = []
    again: list[str] = []
    while len(kinds) < KILLS:
        running = subprocess.Popen(
            [*SMODICE, *map(str, command), *again], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        while running.poll() is None:
            time.sleep(rng.uniform(1, 8))
            kind = rng.choice(["worker", "worker", "watcher", "node"])
            if len(kinds) >= KILLS:
                continue
            if kind == "node":
                ray_cluster.remove_node(ray_cluster.spare.pop(rng.randrange(2)), allow_graceful=False)
                ray_cluster.spare.append(ray_cluster.add_node(num_cpus=1, object_store_memory=80 << 20))
            else:
                pids = workers("kills-ray")
                if kind == "watcher":
                    pids = [parent for pid in pids if (parent := parent_of(pid)) > 1]
                if not kill(pids, rng):
                    continue
            kinds.append(kind)
        again = ["--force"]
    smodice(*command)
    print(f"killed: {kinds}")
    assert digests(out) == here_slow


def test_nothing_is_left_running() -> None:
    wait_for(lambda: not [pid for name in ("kills-slurm", "kills-ray") for pid in workers(name)], 60)
