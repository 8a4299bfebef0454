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
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from cluster_runs import (
    SMODICE,
    Terminal,
    check_ended_well,
    digests,
    is_training,
    kill_during,
    kill_one,
    parent_of,
    sentence,
    smodice,
    states,
    until,
    workers,
)
from conftest import TINY, listing, write_recipe
from slurm_cluster import CannotRunError, Cluster

from smodice_cli.orders import Report

NODE = {"num_cpus": 1, "object_store_memory": 80 << 20}  # of Ray's
CHAINS = ("--seeds", "0-2", "--algo", "smodice,oril", "--checkpoint-every", "0.5")


def recipes(folder: Path) -> list[Path]:
    small = TINY | {"policy": TINY["policy"] | {"steps": 1500}, "eval": {"episodes": 2, "curve_episodes": 1}}
    other = small | {"dataset": TINY["dataset"] | {"offline": ["sim:pointmass-4direction#700"]}}
    return [write_recipe(folder / "first.toml", small), write_recipe(folder / "second.toml", other)]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("clusters")


@pytest.fixture(scope="module")
def took() -> dict[str, float]:
    """How many seconds the run on this machine took."""
    return {}


@pytest.fixture(scope="module")
def here(home: Path, took: dict[str, float]) -> dict[str, str]:
    """What twelve chains make in processes of this machine."""
    began = time.monotonic()
    smodice("run", *recipes(home), *CHAINS, "--jobs", "2", "--out", home / "here")
    took["here"] = time.monotonic() - began
    found = digests(home / "here")
    assert len([path for path in found if path.endswith("eval.json")]) == 12
    return found


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
    """Submitted, left alone, looked at, cancelled; given again and waited for until Ctrl-C, which ends only that."""
    out = home / "slurm-runs"
    command = ("run", *recipes(home), *CHAINS, "--on", "slurm:main", "--out", out)
    told = json.loads(smodice(*command, "--json", env=slurm.env).stdout)
    assert told["folders"] == [str(out / "first"), str(out / "second")]
    assert set(states(out, slurm.env).values()) <= {"queued", "running", "done"}
    until(lambda: is_training(out))
    smodice("cancel", out, env=slurm.env)
    until(lambda: not slurm.queue())
    print(f"checkpoints after cancel on Slurm: {check_ended_well(out)}")
    assert set(states(out, slurm.env).values()) == {"done", "cancelled"}
    waiting = Terminal(*command, "--wait", env=slurm.env)
    until(lambda: slurm.queue() and not list(out.glob("*/orders/.driver.lock")))  # all is submitted
    time.sleep(3)
    waiting.press_ctrl_c()
    code, shown = waiting.ends()
    assert (code, "the jobs go on" in shown, "Traceback" in shown) == (130, True, False), shown
    until(lambda: not slurm.queue())
    found = states(out, slurm.env)
    assert set(found.values()) == {"done"}, found
    assert len(found) == 2 * (1 + 3 + 6), "data, what the chains of a seed share, and the chains"
    assert digests(out) == here
    summary = json.loads((out / "first/summary.json").read_text())
    assert [(row["method"], row["missing"]) for row in summary["methods"]] == [("smodice", []), ("oril", [])]
    before = {path: times for path, times in listing(out).items() if "summary" not in path}
    assert "run" in smodice(*command, env=slurm.env).stdout, "the table of scores"
    assert {path: times for path, times in listing(out).items() if "summary" not in path} == before


def test_a_time_limit_hit_twice_changes_no_byte(home: Path, here: dict[str, str], slurm: Cluster) -> None:
    """The limit comes while the policy is being trained: the worker is stopped there until Slurm's warning has come."""
    out = home / "limit"
    command = ("run", recipes(home)[0], "--checkpoint-every", "0", "--on", "slurm", "--on-set", "time=60")
    running = subprocess.Popen([*SMODICE, *map(str, command), "--out", str(out / "first"), "--wait"], env=slurm.env)
    report = Report(out / "first/orders/seed0.jsonl")

    def is_warned() -> bool:  # the signal, which the batch script passes on, waits for the worker
        told = dict(line.split(":", 1) for line in Path(f"/proc/{worker}/status").read_text().splitlines())
        return bool(int(told["ShdPnd"], 16) >> (signal.SIGUSR1 - 1) & 1)

    def trains(attempt: int) -> bool:
        slurm.hurry()
        report.news()
        return report.starts == attempt and report.progress.get("label") == "train-policy"

    for hits in (1, 2):
        until(lambda: trains(hits))  # noqa: B023
        (worker,) = workers("limit")
        os.kill(worker, signal.SIGSTOP)
        (job,) = slurm.queue("%i %M")
        minutes = int(job.split()[1].split(":")[-2])
        slurm.call("scontrol", "update", f"JobId={job.split()[0]}", f"TimeLimit={minutes + 1}")
        until(is_warned)
        os.kill(worker, signal.SIGCONT)
        until(lambda: report.news() is not None and report.ends.count(75) == hits)  # noqa: B023
        until(lambda: slurm.queue("%T") != ["RUNNING"])
        slurm.call("scontrol", "update", f"JobId={job.split()[0]}", "TimeLimit=60")
    until(lambda: slurm.hurry() or running.poll() is not None)
    assert running.returncode == 0
    report.news()
    assert (report.ends, report.kills) == ([75, 75, 0], 0)
    assert digests(out).items() <= here.items()


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
    until(lambda: not slurm.queue())


def test_a_dataset_that_fails_leaves_nothing_queued(home: Path, slurm: Cluster) -> None:
    """Files of D4RL's that are not there, with no way to its server: nothing answers at the proxy."""
    data = {"env": "hopper", "offline": ["hopper-random-v2"], "expert": ["hopper-expert-v2#traj=0"]}
    recipe, out = write_recipe(home / "nodata.toml", TINY | {"dataset": data}), home / "nodata"
    nothing = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
    env = {**slurm.env, **nothing, "D4RL_DATASET_DIR": str(home / "d4rl"), "no_proxy": "", "NO_PROXY": ""}
    done = smodice("run", recipe, "--seeds", "0-1", "--on", "slurm", "--out", out, "--wait", env=env, code=3)
    assert sentence(done).startswith("error: data: ")
    until(lambda: not slurm.queue())
    rows = json.loads(smodice("status", out, "--json", env=env).stdout)["orders"]
    assert [row["state"] for row in rows] == ["failed", "not started", "not started"]


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
        until(lambda: not slurm.queue())
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
    until(lambda: not slurm.queue())
    assert not (home / "bad").exists()


def in_a_mount_of_its_own(folder: Path, *words: str | Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """A command that has a disk at this folder which nobody else sees."""
    folder.mkdir()
    mounted = ["unshare", "--mount", "sh", "-c", f'mount -t tmpfs none {folder} && exec "$@"', "sh"]
    if subprocess.run([*mounted, "true"], capture_output=True).returncode:
        pytest.skip("no mount of its own can be made here")
    return subprocess.run([*mounted, *SMODICE, *map(str, words)], env=env, capture_output=True, text=True)


def test_a_folder_that_the_nodes_of_slurm_do_not_see_is_named(home: Path, slurm: Cluster) -> None:
    unseen = home / "unseen-slurm"
    command = ("run", recipes(home)[0], "--seeds", "0-1", "--out", unseen / "run", "--on", "slurm", "--wait")
    done = in_a_mount_of_its_own(unseen, *command, env=slurm.env)
    assert done.returncode == 3, done.stderr
    assert "must be on a disk that every node shares" in sentence(done)
    until(lambda: not slurm.queue())


# --- Ray ------------------------------------------------------------------------------------------------------------


def add_node(cluster: Any) -> Any:
    """One more node; Ray gives it half a minute to come up, too little on a busy machine."""
    for _ in range(9):
        with suppress(Exception):
            return cluster.add_node(**NODE)
    return cluster.add_node(**NODE)


@pytest.fixture(scope="module")
def ray_cluster(home: Path) -> Iterator[Any]:
    """A head without work and two nodes."""
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'smodice[ray]'")
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 (Ray's name): otherwise a busy machine starves them
    from ray.cluster_utils import Cluster as RayCluster

    head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": 80 << 20}
    cluster = RayCluster(initialize_head=True, head_node_args=head)
    try:
        cluster.spare = [add_node(cluster) for _ in range(2)]
        yield cluster
    finally:
        cluster.shutdown()


def test_twelve_chains_on_ray_equal_those_of_this_machine(home: Path, here: dict[str, str], ray_cluster: Any) -> None:
    """Ended by Ctrl-C, given again, cancelled, given again."""
    out = home / "ray-runs"
    command = ("run", *recipes(home), *CHAINS, "--on", f"ray:{ray_cluster.address}", "--out", out)
    for end in (Terminal.press_ctrl_c, lambda _: smodice("cancel", out)):
        running = Terminal(*command)
        until(lambda: (is_training(out) and workers("ray-runs")) or not running.is_running())  # noqa: B023
        end(running)
        code, shown = running.ends()
        assert (code, "interrupted" in shown, "Traceback" in shown) == (130, True, False), shown
        print(f"checkpoints after an end on Ray: {check_ended_well(out)}")
    smodice(*command)
    assert digests(out) == here
    assert set(states(out, dict(os.environ)).values()) == {"done"}


def test_a_ray_address_where_nobody_answers_is_one_sentence(home: Path) -> None:
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'smodice[ray]'")
    command = ("run", *recipes(home), "--seeds", "0-1", "--out", home / "bad-ray", "--on")
    assert "nothing answers there" in sentence(smodice(*command, "ray:127.0.0.1:9", code=3))
    assert "Ray takes num_cpus" in sentence(smodice(*command, "ray", "--on-set", "colour=1", code=2))
    assert not (home / "bad-ray").exists()


def test_a_python_that_the_nodes_of_ray_do_not_have_is_named(home: Path, ray_cluster: Any) -> None:
    """A chain that could not begin is a failure, not a gap in the summary."""
    missing = "import sys; sys.executable = '/nowhere/python'; from smodice_cli.__main__ import main; main()"
    words = ("run", recipes(home)[0], "--seeds", "0-1", "--out", home / "python", "--on", f"ray:{ray_cluster.address}")
    done = subprocess.run([sys.executable, "-c", missing, *map(str, words)], capture_output=True, text=True)
    assert done.returncode == 3, done.stderr
    assert "/nowhere/python" in sentence(done)
    assert "Traceback" not in done.stderr


def test_a_folder_that_the_nodes_of_ray_do_not_see_is_named(home: Path, ray_cluster: Any) -> None:
    unseen = home / "unseen-ray"
    on = ("--on", f"ray:{ray_cluster.address}")
    command = ("run", recipes(home)[0], "--seeds", "0-1", "--out", unseen / "run", *on)
    done = in_a_mount_of_its_own(unseen, *command, env=dict(os.environ))
    assert done.returncode == 3, done.stderr
    assert "must be on a disk that every node shares" in sentence(done)


# --- kills ----------------------------------------------------------------------------------------------------------


def test_random_kills_on_slurm_change_no_byte(
    home: Path, here: dict[str, str], took: dict[str, float], slurm: Cluster
) -> None:
    """A worker, the script that started it, the process of Slurm's that watches both, or a whole node at a time.

    What was queued again is started without the two minutes that Slurm would let pass.
    """
    out, rng = home / "kills-slurm", random.Random(0)

    def node() -> bool:
        name = rng.choice(["n1", "n2"])
        if not slurm.workers(name):
            return False
        slurm.kill_node(name)
        time.sleep(rng.uniform(0, 5))
        slurm.start_node(name)
        return True

    kinds = {
        "worker": lambda: kill_one(workers("kills-slurm"), rng),
        "script": lambda: kill_one([parent_of(pid) for pid in workers("kills-slurm")], rng),
        "step": lambda: kill_one(slurm.steps(), rng),
        "node": node,
    }
    command = ["run", *map(str, recipes(home)), *CHAINS, "--on", "slurm", "--out", str(out), "--wait"]
    kill_during(command, took["here"] / 4, rng, kinds, slurm.env, slurm.hurry)
    assert digests(out) == here


def test_random_kills_on_ray_change_no_byte(
    home: Path, here: dict[str, str], took: dict[str, float], ray_cluster: Any
) -> None:
    """A worker, the process of Ray's that watches it, or a whole node."""
    out, rng = home / "kills-ray", random.Random(1)

    def node() -> bool:
        try:
            another = ray_cluster.add_node(**NODE)  # before one goes: on a busy machine it may not come up in time
        except Exception:
            return False
        ray_cluster.remove_node(ray_cluster.spare.pop(rng.randrange(2)), allow_graceful=False)
        ray_cluster.spare.append(another)
        return True

    kinds = {
        "worker": lambda: kill_one(workers("kills-ray"), rng),
        "watcher": lambda: kill_one([parent_of(pid) for pid in workers("kills-ray")], rng),
        "node": node,
    }
    command = ["run", *map(str, recipes(home)), *CHAINS, "--on", f"ray:{ray_cluster.address}", "--out", str(out)]
    kill_during(command, took["here"] / 4, rng, kinds)
    assert digests(out) == here


def test_nothing_is_left_running() -> None:
    until(lambda: not [pid for name in ("kills-slurm", "kills-ray") for pid in workers(name)])
