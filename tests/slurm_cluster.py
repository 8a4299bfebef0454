"""A Slurm cluster on this machine for tests: a controller and two nodes on loopback, without root's daemons or systemd.

Slurm is the machine's own or Debian's packages, unpacked into build/slurm; nothing is installed.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).parents[1] / "build/slurm"
PACKAGES = ("slurmctld", "slurmd", "slurm-client", "slurm-wlm-basic-plugins")
LIBRARIES = ("libhwloc15", "libmunge2", "libjson-c5", "liblua5.1-0", "libnuma1", "libyaml-0-2", "libdbus-1-3")
FETCHING = 300  # seconds at most
CLIENTS = ("sbatch", "squeue", "scancel", "scontrol", "sinfo")
CONFIG = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
CredType=cred/none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
ReturnToService=2
SlurmdTimeout=10
KillWait=60
UnkillableStepTimeout=20
SchedulerParameters=sched_min_interval=200000,batch_sched_delay=0,defer_batch=no
SchedulerTimeSlice=5
OverTimeLimit=0
SlurmctldPort={port}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
PluginDir={plugins}
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={first} CPUs=1 RealMemory=100
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={second} CPUs=1 RealMemory=100
PartitionName=main Nodes=n1,n2 Default=YES State=UP MaxTime=INFINITE
"""


class CannotRunError(Exception):
    """Why there is no Slurm on this machine."""


def fetch() -> Path:
    """Where Slurm is: `/`, or a folder into which Debian's packages were unpacked."""
    if shutil.which("slurmctld") and shutil.which("slurmd") and shutil.which("sbatch"):
        return Path("/")
    if (ROOT / "whole").exists():
        return ROOT
    if not shutil.which("apt-get") or not shutil.which("dpkg"):
        raise CannotRunError("Slurm is not installed, and this is no Debian to fetch it from")
    ROOT.mkdir(parents=True, exist_ok=True)
    words = ["apt-get", "download", *PACKAGES, *LIBRARIES]
    try:
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=FETCHING)
    except subprocess.TimeoutExpired as error:
        raise CannotRunError(f"Slurm's packages did not come in {FETCHING} seconds") from error
    if done.returncode:
        raise CannotRunError(f"Slurm's packages cannot be fetched: {done.stderr.strip().splitlines()[-1:]}")
    for package in ROOT.glob("*.deb"):
        subprocess.run(["dpkg", "-x", package, ROOT], check=True)
        package.unlink()
    (ROOT / "whole").touch()
    return ROOT


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


class Cluster:
    """The running daemons, and the environment in which its commands are found."""

    def __init__(self, folder: Path) -> None:
        root = fetch()
        self.folder, self.root = folder, root
        (folder / "state").mkdir(parents=True)
        found = sorted(root.glob("usr/lib*/**/slurm*/select_cons_tres.so"))
        if not found:
            raise CannotRunError("Slurm's plug-ins are not where they are looked for")
        plugins = found[0].parent
        port, first, second = _free_ports(3)
        self.config = folder / "slurm.conf"
        host, user = socket.gethostname().split(".")[0], os.environ.get("USER") or "root"
        names = {"host": host, "user": user, "port": port, "first": first, "second": second}
        self.config.write_text(CONFIG.format(folder=folder, plugins=plugins, **names))
        libraries = [plugins, *sorted({path.parent for path in root.glob("usr/lib/*/*.so*")})] if root == ROOT else []
        self.libraries = ":".join(map(str, libraries))
        self._link()
        self.env = os.environ | {"SLURM_CONF": str(self.config), "PATH": f"{folder}/bin:{os.environ['PATH']}"}
        self.daemons: dict[str, subprocess.Popen[bytes]] = {}

    def _link(self) -> None:
        """The clients with the libraries that they need."""
        (self.folder / "bin").mkdir()
        for name in CLIENTS:
            real = self.root / "usr/bin" / name
            script = f'#!/bin/sh\nLD_LIBRARY_PATH={self.libraries} exec {real} "$@"\n'
            (self.folder / "bin" / name).write_text(script)
            (self.folder / "bin" / name).chmod(0o755)

    def _program(self, name: str) -> Path:
        return next(path for path in sorted((self.root / "usr/sbin").glob(f"{name}*")) if path.name.startswith(name))

    def _daemon(self, key: str, *words: str | Path) -> None:
        with open(self.folder / f"{key}.out", "ab") as output:
            environment = self.env | ({"LD_LIBRARY_PATH": self.libraries} if self.libraries else {})
            self.daemons[key] = subprocess.Popen(
                [*map(str, words)], env=environment, stdout=output, stderr=output, start_new_session=True
            )

    def start(self) -> None:
        self._daemon("controller", self._program("slurmctld"), "-D", "-f", self.config, "-c")
        for node in ("n1", "n2"):
            self.start_node(node)
        end = time.monotonic() + 60
        while (states := self.nodes()) != {"n1": "idle", "n2": "idle"}:
            if time.monotonic() > end:
                raise CannotRunError(f"Slurm's nodes do not come up: {states}; see {self.folder}")
            time.sleep(0.3)

    def start_node(self, node: str) -> None:
        step = self._program("slurmstepd")
        self._daemon(node, self._program("slurmd"), "-D", "-N", node, "-f", self.config, "-d", step)

    def nodes(self) -> dict[str, str]:
        told = self.call("sinfo", "--noheader", "--Node", "--format=%N %t", check=False).stdout.split("\n")
        return {line.split()[0]: line.split()[1].rstrip("*~#$@") for line in told if len(line.split()) == 2}

    def call(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        return subprocess.run(words, env=self.env, capture_output=True, text=True, check=check)

    def queue(self, columns: str = "%i %T %r %N") -> list[str]:
        return self.call("squeue", "--noheader", "--array", f"--format={columns}").stdout.splitlines()

    def hurry(self) -> None:
        """Start at once what was queued again, which Slurm otherwise leaves alone for two minutes."""
        for line in self.queue():
            if line.split()[1:3] == ["PENDING", "BeginTime"]:
                self.call("scontrol", "update", f"JobId={line.split()[0]}", "StartTime=now", check=False)

    def steps(self, node: str = "") -> list[int]:
        """The processes of slurmstepd, of one node or of all; each holds its node's log open."""
        found = []
        for process in self._mine():
            with suppress(OSError):
                if Path((process / "cmdline").read_bytes().split(b"\0")[0].decode()).name.startswith("slurmstepd"):
                    held = [os.readlink(handle) for handle in (process / "fd").iterdir()]
                    if not node or f"{self.folder}/slurmd-{node}.log" in held:
                        found.append(int(process.name))
        return found

    def workers(self, node: str = "") -> list[int]:
        """The processes of jobs, of one node or of all."""
        wanted = f"SLURMD_NODENAME={node}".encode()
        return [int(process.name) for process in self._mine() if wanted in self._environment(process)]

    def _mine(self) -> list[Path]:
        """Every process that was started with this cluster's configuration."""
        mark = f"SLURM_CONF={self.config}".encode()
        return [path for path in Path("/proc").glob("[0-9]*") if mark in self._environment(path)]

    def _environment(self, process: Path) -> bytes:
        with suppress(OSError):
            return (process / "environ").read_bytes()
        return b""

    def kill_node(self, node: str) -> None:
        """Everything on a node goes at once, as when it loses its power."""
        for pid in [self.daemons[node].pid, *self.steps(node), *self.workers(node)]:
            _kill(pid)
        self.daemons[node].wait()

    def stop(self) -> None:
        if "controller" in self.daemons:
            self.call("scancel", f"--user={os.getuid()}", check=False)
        for name in ("n1", "n2", "controller"):
            if name in self.daemons:
                self.daemons[name].terminate()
        for daemon in self.daemons.values():
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        for pid in [*self.steps(), *self.workers()]:
            _kill(pid)


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
