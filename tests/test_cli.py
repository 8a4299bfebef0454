"""The command line as people and programs meet it: help, speed, exit codes, colours, JSON, progress, pipes."""

from __future__ import annotations

import json
import os
import pty
import re
import resource
import select
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from conftest import ENV, PATIENCE, SMALL, smodice, succeed, wait_for
from recordings import write_file

from smodice_cli import __version__
from smodice_cli.commands import app
from smodice_cli.console import Bar, console
from smodice_cli.parallel import ordered_map

SMODICE = [sys.executable, "-m", "smodice_cli"]
GROUP = typer.main.get_command(app)
COMMANDS = sorted(name for name, command in GROUP.commands.items() if not command.hidden)  # type: ignore[attr-defined]
ESCAPE = "\x1b"


def examples(name: str) -> list[str]:
    """The commands at the end of a command's help."""
    epilog = GROUP.commands[name].epilog or ""  # type: ignore[attr-defined]
    plain = epilog.replace("[dim]", "").replace("[/]", "").replace("\\[", "[")
    return [line.strip() for line in plain.splitlines() if line.strip().startswith("smodice ")]


BARE = """
import typer
app = typer.Typer(rich_markup_mode="rich")
@app.command()
def one(): "One."
@app.command()
def two(): "Two."
app()
"""


def test_help_loads_nothing_heavy_and_takes_at_most_twice_as_long_as_a_bare_typer_program(tmp_path: Path) -> None:
    code = (
        "import sys, smodice_cli.commands as a\n"
        "try: a.app(['--help'], prog_name='smodice')\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'mujoco', 'matplotlib', 'numpy', 'h5py', 'gymnasium', 'scipy'} & set(sys.modules)\n"
        "sys.exit(repr(heavy) if heavy else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    # As on a machine that keeps bytecode; compiling it, and how quick or busy a machine is, are not the tool's time.
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    kept |= {"PYTHONPYCACHEPREFIX": str(tmp_path)}

    def processor_seconds(command: list[str]) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([*command, "--help"], check=True, capture_output=True, env=kept)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    (tmp_path / "bare.py").write_text(BARE)
    bare = [sys.executable, str(tmp_path / "bare.py")]
    times = [(processor_seconds(SMODICE), processor_seconds(bare)) for _ in range(6)]
    ours, theirs = map(min, zip(*times, strict=True))
    assert ours < 2 * theirs


def test_help_lists_every_command() -> None:
    said = succeed("--help").stdout
    assert {"run", "eval", "inspect"} <= set(COMMANDS)
    listed = set(re.findall(r"^\W*([a-z-]+)  ", said, re.MULTILINE))
    assert set(COMMANDS) <= listed
    assert "work" not in listed
    assert succeed("--version").stdout == f"smodice {__version__}\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_help_ends_with_two_examples_that_parse(name: str) -> None:
    assert len(examples(name)) >= 2
    said = re.sub(r"\s+", " ", succeed(name, "--help").stdout)
    assert "Examples" in said
    for example in examples(name):
        assert re.sub(r"\s+", " ", example) in said
        for command in example.split(" ; "):
            words = shlex.split(command.partition("  # ")[0])
            GROUP.commands[words[1]].make_context(words[1], words[2:])  # type: ignore[attr-defined]
    assert shlex.split(examples(name)[0])[1] == name


@pytest.mark.parametrize("arguments", [["settings"], ["settings", "value"], ["envs"]])
def test_json_is_all_there_is_on_stdout(arguments: list[str]) -> None:
    outcome = succeed(*arguments, "--json")
    assert json.loads(outcome.stdout)
    assert outcome.stderr == ""


def test_json_and_quiet_together_leave_only_json(run: Path) -> None:
    command = ("train-disc", "--data", run / "dataset.h5", "--out", run / "new.safetensors", "--steps", "5", *SMALL)
    outcome = succeed(*command, "--json", "--quiet")
    assert outcome.json["status"] == "done"
    assert outcome.stderr == ""
    outcome = succeed(*command, "--quiet", "--force")
    assert (outcome.stdout, outcome.stderr) == ("", "")
    assert smodice("train-disc", "--data", run / "absent", "--quiet").stderr.startswith("error: ")


def test_status_and_inspect_answer_in_json(run: Path) -> None:
    states = succeed("status", run, "--json").json["artifacts"]
    assert {row["kind"] for row in states} == {"dataset", "disc", "value", "weights", "policy", "snapshots", "eval"}
    assert {row["state"] for row in states} == {"ok"}
    health = succeed("inspect", run / "weights.h5", "--json").json["health"]
    wanted = {"rows", "effective_sample_size", "largest_share", "zero_share", "mean", "quantiles", "by_source"}
    assert wanted <= health.keys()
    assert health["rows"] == 3000
    assert health["mean"] == pytest.approx(1.0)


def test_inspect_shows_people_the_whole_story(run: Path) -> None:
    said = succeed("inspect", run / "weights.h5").stdout
    for words in ("train-value", "effective sample size", "exact zeros", f"sim:{ENV}", "made from"):
        assert words in said
    assert re.search(r"dataset\.h5.*\bok\b", said)
    assert max(map(len, said.splitlines())) <= 200


def test_a_path_with_brackets_is_shown_as_it_is(run: Path, tmp_path: Path) -> None:
    odd = run.rename(tmp_path / "[red]run[bold]")
    outcome = succeed("train-disc", "--data", odd / "dataset.h5", "--steps", "40", *SMALL)
    assert f"{odd}/disc.safetensors" in outcome.stdout
    assert f"{odd}/disc.safetensors" in succeed("inspect", odd / "disc.safetensors").stdout
    assert "[red]" in smodice("inspect", odd / "absent").stderr


def test_output_that_is_no_terminal_has_no_escape_codes(run: Path) -> None:
    for arguments in (["settings"], ["--help"], ["inspect", str(run / "weights.h5")], ["inspect", "absent"]):
        done = subprocess.run([*SMODICE, *arguments], capture_output=True, text=True)
        assert ESCAPE not in done.stdout + done.stderr
        assert done.stdout or done.stderr


def on_terminal(arguments: list[str], **environment: str) -> tuple[int, str]:
    """Run a command with a terminal of its own and return all that it showed."""
    child, terminal = pty.fork()
    if child == 0:
        os.environ.update({"TERM": "xterm-256color", "COLUMNS": "150", **environment})
        os.execv(sys.executable, [*SMODICE, *arguments])
    shown = b""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if not select.select([terminal], [], [], 0.5)[0]:
            continue
        try:
            chunk = os.read(terminal, 65536)
        except OSError:  # the terminal closes with its last user
            break
        if not chunk:
            break
        shown += chunk
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), shown.decode()


def test_a_terminal_shows_a_progress_bar_with_rate_and_figures(run: Path) -> None:
    out = str(run / "new.safetensors")
    command = ["train-disc", "--data", str(run / "dataset.h5"), "--out", out, "--steps", "300", *SMALL]
    code, shown = on_terminal(command)
    assert code == 0, shown
    assert ESCAPE in shown
    for words in ("train-disc", "100%", "it/s", "reward_expert"):
        assert words in shown


@pytest.mark.parametrize("columns", [80, 140])
def test_a_bar_always_shows_percentage_rate_and_time_left(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What there is no room for is cut at the end: the live figures."""
    monkeypatch.setenv("COLUMNS", str(columns))
    bars = console.bars()
    for label in ("demodice-sd seed 12 train-policy", "seed 0 eval"):
        bar = Bar(bars, label, 30_000)
        bar.began -= 10.0
        bar.update(12_345, loss=0.123456, held_out=-40.1234, effective_share=0.0987, reward_expert=1.5)
    with bars.console.capture() as shown:
        bars.console.print(bars.get_renderable())
    first, second = shown.get().splitlines()
    for line in (first, second):
        assert len(line) <= columns
        assert re.search(r"━.* 41% +1,23\d it/s (\d\d:\d\d|--:--) loss 0.12", line)
    assert first.startswith("demodice-sd seed 12 t" if columns == 80 else "demodice-sd seed 12 train-policy ")


def test_a_bar_without_an_end_shows_no_percentage_and_names_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    bars = console.bars()
    Bar(bars, "read file:[ab]*.csv", 0).update(1_000, **{"xi file:[ab]*.csv": 0.5})
    with bars.console.capture() as shown:
        bars.console.print(bars.get_renderable())
    assert "read file:[ab]*.csv" in shown.get()
    assert "xi file:[ab]*.csv 0.5" in shown.get()
    assert "%" not in shown.get()


def test_settings_and_recipes_are_wrapped_at_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for command, name in (("settings", "value.gamma"), ("recipes", "pointmass-4direction")):
        lines = succeed(command).stdout.splitlines()
        assert max(map(len, lines)) <= 80
        assert any(line.startswith(f"{name} ") for line in lines), "names are never broken"
    (gamma,) = [line for line in succeed("settings", "value").stdout.splitlines() if line.startswith("value.gamma")]
    assert re.fullmatch(r"value.gamma +0.99 +discount *", gamma)


def test_the_shell_is_offered_names_and_files_that_fit(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(run.parent)

    def offered(name: str, parameter: str, incomplete: str) -> set[str]:
        command = GROUP.commands[name]  # type: ignore[attr-defined]
        context = command.make_context(name, [], resilient_parsing=True)
        (found,) = [one for one in command.params if parameter in (*one.opts, one.name)]
        return {item.value for item in found.shell_complete(context, incomplete)}

    assert {"smodice", "sail"} <= offered("train-disc", "--algo", "s")
    assert offered("run", "recipe", "hopper-e") == {"hopper-expert"}
    assert {"pointmass-4direction", "data"} <= offered("run", "--env", "")
    assert offered("run", "--algo", "smodice,bc-") == {"smodice,bc-expert-only"}
    assert offered("run", "--preset", "p") == {"paper"}
    assert offered("run", "--variants", "abl") == {"ablation"}
    assert offered("export", "--to", "c") == {"csv"}
    assert offered("export", "file", "run/weights") == {"run/weights.h5"}
    assert "value.gamma=" in offered("run", "--set", "value.")
    assert offered("run", "--set", "value.sampling=") == {"value.sampling=uniform", "value.sampling=discounted"}
    assert offered("train-value", "--disc", "run/d") == {"run/disc.safetensors"}
    (run.parent / "runs").symlink_to(run)
    assert "runs/policy.safetensors" in offered("eval", "--policy", "")
    environment = {"_SMODICE_COMPLETE": "complete_bash", "COMP_WORDS": "smodice run hopper-e", "COMP_CWORD": "2"}
    done = subprocess.run(SMODICE, env={**os.environ, **environment}, capture_output=True, text=True)
    assert done.stdout.split() == ["hopper-expert"]


def test_no_color_is_respected() -> None:
    _, coloured = on_terminal(["inspect", "absent"])
    assert re.search(r"\x1b\[[0-9;]*31m", coloured), "an error is red"
    _, plain = on_terminal(["inspect", "absent"], NO_COLOR="1")
    assert not re.search(r"\x1b\[[0-9;]*31m", plain)


def test_a_reader_that_leaves_early_ends_it_quietly() -> None:
    process = subprocess.Popen([*SMODICE, "settings"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read().decode() == ""
    assert process.wait() == 141


def test_an_unexpected_error_is_a_bug_with_code_1_and_a_traceback_only_on_request(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("nobody thought of this")

    monkeypatch.setattr("smodice_cli.views.describe", broken)
    outcome = smodice("inspect", run / "eval.json")
    assert outcome.code == 1
    assert "internal error: ZeroDivisionError: nobody thought of this" in outcome.stderr
    assert "Traceback" not in outcome.stderr
    outcome = smodice("inspect", run / "eval.json", "--debug")
    assert outcome.code == 1
    assert "Traceback" in outcome.stderr


def test_debug_keeps_the_exit_code(tmp_path: Path) -> None:
    outcome = smodice("inspect", tmp_path / "absent", "--debug")
    assert outcome.code == 3
    assert "Traceback" in outcome.stderr


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ([], 2),
        (["bogus"], 2),
        (["settings", "bogus"], 2),
        (["eval", "--policy", "x", "--steps", "3"], 2),
        (["--help"], 0),
    ],
)
def test_usage_errors_end_with_2(arguments: list[str], code: int) -> None:
    assert smodice(*arguments).code == code


def processes_of(session: int) -> list[int]:
    """The processes of a session that still run."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found


@pytest.mark.parametrize("delay", [0.4, 2.5])
def test_interrupting_a_simulation_is_clean(tmp_path: Path, delay: float) -> None:
    """Ctrl-C reaches every process of the terminal's group; only the parent may speak, and nothing may stay."""
    sources = ["--offline", f"sim:{ENV}#9000000", "--expert", f"sim:{ENV}#success=10"]
    command = [*SMODICE, "build-dataset", "--env", ENV, *sources, "--out", str(tmp_path / "runs" / "d.h5")]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    wait_for(lambda: len(processes_of(process.pid)) > 1)  # until the first worker starts
    time.sleep(delay)
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert "Traceback" not in said
    assert "error: interrupted" in said
    assert not list(tmp_path.iterdir())
    wait_for(lambda: not processes_of(process.pid))  # the last helper process ends just after its parent


@pytest.mark.parametrize("source", [f"sim:{ENV}#300", f"sim:{ENV}#success=10", f"sim:{ENV}#traj=0"])
def test_an_interrupt_while_the_processes_of_a_simulation_end_is_not_lost(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes when enough was simulated and the processes are told to stop, which takes a while."""

    def interrupted(*arguments: Any) -> Iterator[Any]:
        try:
            yield from ordered_map(*arguments)
        finally:
            raise KeyboardInterrupt

    monkeypatch.setattr("smodice_cli.sources.sim.ordered_map", interrupted)
    log = write_file(tmp_path / "log.hdf5")
    offline, expert = (source, f"file:{log}") if source.endswith("#300") else (f"file:{log}", source)
    outcome = smodice(
        "build-dataset", "--env", ENV, "--offline", offline, "--expert", expert, "--out", tmp_path / "d.h5"
    )
    assert outcome.code == 130, outcome.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["log.hdf5"]


def test_killing_a_simulation_leaves_no_orphans_and_the_next_run_cleans_up(tmp_path: Path) -> None:
    def command(rows: int) -> list[str]:
        sources = ["--offline", f"sim:{ENV}#{rows}", "--expert", f"sim:{ENV}#success=10"]
        return [*SMODICE, "build-dataset", "--env", ENV, *sources, "--out", str(tmp_path / "d.h5")]

    process = subprocess.Popen(command(9_000_000), stderr=subprocess.DEVNULL, start_new_session=True)
    wait_for(lambda: list(tmp_path.glob(".d.h5.*.tmp/observations")))
    time.sleep(1.0)
    process.kill()
    process.wait()
    wait_for(lambda: not processes_of(process.pid))
    succeed(*command(200)[3:])
    assert [path.name for path in tmp_path.iterdir()] == ["d.h5"]


def test_a_setting_taken_for_a_flag_is_named() -> None:
    outcome = smodice("run", "hopper", "--n-step", "3")
    assert outcome.code == 2
    assert "--set value.n_step=" in outcome.stderr
