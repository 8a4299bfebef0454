"""`smodice report`: its numbers against the score files, its commands against the artifacts, its page in a browser."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import typer
from conftest import ENV, EXPERT, OFFLINE, SMALL, refuse, succeed
from scipy import stats

from smodice_cli import artifacts
from smodice_cli.commands import app
from smodice_cli.views import aggregate, paper, report
from smodice_cli.views.render.png import render
from smodice_cli.views.render.theme import Panel

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
GROUP = typer.main.get_command(app)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two run folders: one with two seeds, another method with one."""
    folder = tmp_path_factory.mktemp("runs")
    few = ("--steps", "200", *SMALL)
    succeed("build-dataset", "--env", ENV, "--offline", OFFLINE, "--expert", EXPERT, "--out", folder / "a/dataset.h5")
    (folder / "b").mkdir()
    shutil.copy(folder / "a/dataset.h5", folder / "b/dataset.h5")
    for name, seed, f in (("a", "0", "kl"), ("a", "1", "kl"), ("b", "0", "chi2")):
        place = folder / name / f"seed{seed}"
        common = ("--seed", seed, *few)
        succeed("train-disc", "--data", folder / name / "dataset.h5", "--out", place / "disc.safetensors", *common)
        succeed("train-value", "--disc", place / "disc.safetensors", "--f", f, *common)
        succeed("train-policy", "--value", place / "value.safetensors", *common)
        evaluation = ("--policy", place / "policy.safetensors", "--episodes", "2", "--threads", "1", "--seed", seed)
        succeed("eval", *evaluation)
    return folder


def test_results_equal_the_score_files(runs: Path, tmp_path: Path) -> None:
    found = succeed("report", runs, "--html", tmp_path / "r.html", "--json").json
    a, b = found["runs"]
    assert [a["run"], b["run"]] == ["a", "b"]
    scores = [json.loads((runs / f"a/seed{seed}/eval.json").read_text())["score"]["normalized"] for seed in (0, 1)]
    assert a["score"] == pytest.approx(np.mean(scores))
    assert a["score_std"] == pytest.approx(np.std(scores, ddof=1))
    assert a["per_seed"] == {"0": scores[0], "1": scores[1]}
    assert (a["seeds"], b["seeds"], b["score_std"]) == ([0, 1], [0], None)
    assert a["paper"] == 80.0
    shares = [artifacts.read_header(runs / f"a/seed{s}/weights.h5").metrics["effective_share"] for s in (0, 1)]
    assert a["effective_share"] == pytest.approx(np.mean(shares))
    assert a["method"].startswith("smodice: kl")
    assert b["method"].startswith("smodice: chi2")
    assert found["bytes"] == (tmp_path / "r.html").stat().st_size


def test_curves_are_the_logs_with_their_spread(runs: Path) -> None:
    run = report.collect([runs / "a"])[0]
    line = report.spread_of(run, "policy", "loss")
    assert line is not None
    logs = [
        {row["step"]: row["loss"] for row in map(json.loads, (runs / f"a/seed{s}/policy.log.jsonl").open())}
        for s in (0, 1)
    ]
    for step, mean, low, high in zip(*line.values(), strict=True):
        values = [log[step] for log in logs]
        interval = stats.t.interval(0.95, len(values) - 1, np.mean(values), stats.sem(values))
        assert (mean, low, high) == pytest.approx((np.mean(values), *interval))
    assert report.spread_of(run, "policy", "no such figure") is None


def test_return_over_training_has_its_own_picture_and_column(runs: Path, tmp_path: Path) -> None:
    found = succeed("report", runs, "--html", tmp_path / "new/folder/r.html", "--json").json
    curves = [json.loads((runs / f"a/seed{seed}/eval.json").read_text())["curve"] for seed in (0, 1)]
    mean = np.mean([[point["normalized"] for point in curve] for curve in curves], axis=0)
    line = report.returns_of(report.collect([runs / "a"])[0])
    assert line is not None
    assert line["mean"] == pytest.approx(mean)
    assert line["steps"] == [point["step"] for point in curves[0]]
    late = mean[np.array(line["steps"]) >= 2 / 3 * line["steps"][-1]]
    worst = np.abs(late - mean[-1]).max() / max(abs(mean[-1]), 1.0)
    assert found["runs"][0]["worst_deviation"] == pytest.approx(worst)
    assert found["runs"][0]["steady"] == f"{'yes' if worst <= 0.1 else 'no'} ({100 * worst:.1f} %)"
    text = (tmp_path / "new/folder/r.html").read_text()
    assert text.count('id="returns"><h3>') == 1  # one task, one panel for each of its methods
    assert "steady</button>" in text


def test_every_method_of_a_task_has_a_panel_of_its_own_on_one_scale(runs: Path) -> None:
    run = report.collect([runs / "a"])[0]
    methods = [run, *(replace(run, own=name) for name in ("b", "c", "d"))]
    (panel,) = report.returns_panels(methods)
    figure = render(panel, 6, 4)
    shown = [axes for axes in figure.axes if axes.get_visible()]
    assert [axes.get_title(loc="left") for axes in shown] == ["smodice", "b", "c", "d"]
    assert len({(*axes.get_xlim(), *axes.get_ylim()) for axes in shown}) == 1
    low, high = shown[0].get_ylim()
    assert low <= 0 <= 100 <= high
    words = {text.get_text() for text in shown[0].texts}
    assert words == {"random", "expert", "paper"}
    assert len([line for line in shown[0].lines if len(line.get_xdata()) > 2]) == 4  # its own, and the others in grey
    colours = {axes.get_title(loc="left"): axes.lines[-1].get_color() for axes in shown}
    assert colours == aggregate.colours(methods)  # as in every other picture
    assert len(set(colours.values())) == 4


def test_a_method_is_called_as_shortly_as_tells_it_apart(runs: Path) -> None:
    run, other = report.collect([runs])
    assert aggregate.names([run]) == ["smodice"]
    assert aggregate.names([run, other]) == [run.method, other.method]  # kl and chi2
    assert aggregate.names([run, replace(run, name="again")]) == [f"a, {run.method}", f"again, {run.method}"]


def test_a_flat_curve_is_drawn_flat(runs: Path) -> None:
    line = {"steps": [0.0, 1.0], "mean": [0.9945, 0.9947], "low": [0.9945, 0.9947], "high": [0.9945, 0.9947]}
    figure = render(Panel("curves", "", "", report.draw_curves, ({"AUC": line}, False)), 6, 4)
    low, high = figure.axes[0].get_ylim()
    assert high - low > 0.09


def test_its_commands_would_make_the_same_artifacts(runs: Path) -> None:
    lines = report.commands(report.collect([runs / "b"])[0])
    assert len(lines) == 5
    for line in lines:
        program, name, *words = shlex.split(line)
        assert program == "smodice"
        GROUP.commands[name].make_context(name, list(words))  # type: ignore[attr-defined]
        outcome = succeed(name, *words, "--dry-run", "--json").json
        assert outcome["status"] == "cached", (line, outcome)


def test_a_score_of_another_policy_is_left_out(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "b", tmp_path / "b")
    seed = tmp_path / "b/seed0"
    few = ("--steps", "50", *SMALL)
    succeed("train-policy", "--algo", "bc", "--data", tmp_path / "b/dataset.h5", "--out", seed / "bc.safetensors", *few)
    succeed("eval", "--policy", seed / "bc.safetensors", "--episodes", "2", "--threads", "1")
    assert (seed / "bc.eval.json").exists()
    before, after = (report.collect([folder / "b"])[0].seeds[0].score for folder in (runs, tmp_path))
    assert before == after
    shutil.copy(seed / "bc.eval.json", seed / "eval.json")
    outcome = succeed("report", tmp_path / "b", "--html", tmp_path / "r.html", "--json")
    assert "eval.json was made from another policy than policy.safetensors beside it: left out" in outcome.stderr
    assert outcome.json["runs"][0]["score"] is None
    succeed("train-value", "--disc", seed / "disc.safetensors", "--f", "kl", *few)
    (seed / "eval.json").unlink()
    assert set(report.collect([tmp_path / "b"])[0].seeds[0].headers) == {"disc", "value", "weights"}
    (seed / "disc.safetensors").write_bytes(b"cut short")
    assert "left out" in succeed("report", tmp_path / "b", "--html", tmp_path / "r.html").stderr


def test_a_shared_discriminator_counts_for_everyone_who_used_it(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "b", tmp_path / "b")
    few = ("--steps", "20", *SMALL, "--set", "lr=1e-3")  # the default of the others, but not of oril
    place = tmp_path / "b/seed0/oril/policy.safetensors"
    succeed("train-policy", "--algo", "oril", "--disc", tmp_path / "b/seed0/disc.safetensors", "--out", place, *few)
    run = next(run for run in report.collect([tmp_path / "b"]) if run.own == "oril")
    parts = [artifacts.read_header(path) for path in (place, tmp_path / "b/seed0/disc.safetensors")]
    assert report.result(run)["seconds"] == pytest.approx(sum(part.seconds for part in parts))
    lines = report.commands(run)
    assert [shlex.split(line)[1] for line in lines] == ["build-dataset", "train-disc", "train-policy"]
    for line in lines:
        assert succeed(*shlex.split(line)[1:], "--dry-run", "--json").json["status"] == "cached", line


def test_the_page_stands_alone_and_is_small(runs: Path, tmp_path: Path) -> None:
    page = tmp_path / "r.html"
    succeed("report", runs / "a", runs / "b", "--html", page)
    text = page.read_text()
    assert not re.search(r"https?://|@import|<link[^>]+stylesheet|<script src", text)
    assert text.count("<img ") == text.count("<source ") >= 8
    assert "Provenance" in text
    assert text.index('id="provenance"') < text.index('id="results"')
    assert artifacts.read_header(runs / "a/dataset.h5").digest[:12] in text
    assert "smodice train-value" in text
    assert page.stat().st_size < 2 * 500_000  # ten runs stay below 5 MB
    assert "Mean over 2 seeds" in text


@pytest.mark.slow
def test_a_page_of_ten_runs_is_below_five_megabytes(runs: Path, tmp_path: Path) -> None:
    for number in range(10):
        shutil.copytree(runs / "b", tmp_path / "runs" / f"run{number}")
    found = succeed("report", tmp_path / "runs", "--html", tmp_path / "r.html", "--json").json
    assert len(found["runs"]) == 10
    assert found["bytes"] < 5_000_000


def test_bad_input_is_refused(runs: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "holds no results" in refuse(3, "report", empty, "--html", tmp_path / "r.html")
    assert "not a folder" in refuse(3, "report", tmp_path / "absent", "--html", tmp_path / "r.html")
    assert not (tmp_path / "r.html").exists()
    mine = tmp_path / "mine.html"
    mine.write_text("mine")
    refuse(5, "report", runs, "--html", mine)
    refuse(2, "report", runs, "--html", tmp_path / "report.pdf")


def test_an_unfinished_run_and_a_missing_dataset_are_shown_as_such(runs: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(runs / "b", tmp_path / "b"))
    (copy / "dataset.h5").unlink()
    (copy / "seed0/eval.json").unlink()
    (copy / "seed0/policy.safetensors").write_bytes(b"broken")
    outcome = succeed("report", copy, "--html", tmp_path / "r.html", "--json")
    (found,) = outcome.json["runs"]
    assert found["score"] is None
    assert "left out" in outcome.stderr
    assert "the dataset is not there" in (tmp_path / "r.html").read_text()


def test_an_interrupted_run_is_listed_as_such(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "a", tmp_path / "a")
    seed = tmp_path / "a/seed1"
    header = artifacts.read_header(seed / "policy.safetensors")
    for name in ("policy.safetensors", "eval.json"):
        (seed / name).unlink()
    begun = replace(header, kind="checkpoint", stage="train-policy", metrics={"step": 80}, digest="")
    artifacts.write_safetensors(seed / ".policy.safetensors.ckpt", begun, {"generator": torch.zeros(1)})
    outcome = succeed("report", tmp_path / "a", "--html", tmp_path / "r.html", "--json")
    (found,) = outcome.json["runs"]
    assert found["unfinished"] == {"1": "interrupted in train-policy at step 80"}
    assert found["per_seed"]["1"] is None
    assert "seed 1: interrupted in train-policy at step 80" in (tmp_path / "r.html").read_text()
    for path in seed.glob("[!.]*"):
        path.unlink()  # nothing but the checkpoint is left
    outcome = succeed("report", tmp_path / "a", "--html", tmp_path / "r.html", "--json")
    assert outcome.json["runs"][0]["unfinished"] == {"1": "interrupted in train-policy at step 80"}


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_pictures_are_stored_as_their_names_say(runs: Path, tmp_path: Path, ending: str) -> None:
    picture = tmp_path / f"p.{ending}"
    first = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[ending]
    panels = ("--panels", "along,density") if ending == "svg" else ()
    for command in (("inspect", runs / "a/seed0/weights.h5", *panels), ("report", runs, "--html", tmp_path / "r.html")):
        succeed(*command, "--png", picture)  # the second time over a file of ours
        assert picture.read_bytes().startswith(first)
    picture.write_bytes(first + b" of somebody else's")
    refuse(5, "report", runs, "--html", tmp_path / "r.html", "--png", picture)
    assert "must end in .png or .svg or .pdf" in refuse(
        2, "inspect", runs / "a/dataset.h5", "--png", tmp_path / "p.jpg"
    )


def test_the_papers_scores_by_task() -> None:
    assert paper.setting(ENV, [f"sim:{ENV}#success=300"]) == "examples"
    assert paper.setting("ant", ["sim:ant-disabled-expert#traj=0"]) == "mismatched"
    assert paper.setting("ant", ["sim:ant-expert#traj=0"]) == "observations"
    assert paper.setting("hopper", ["d4rl:hopper-expert-v2#traj=0"]) == "observations"
    assert paper.score(ENV, "examples") == ("80.0", 80.0)
    assert paper.score("halfcheetah", "mismatched") == ("70.7 % below its own expert's", None)
    assert paper.score("hopper", "observations") == ("", None)


PROBE = """
<script>
addEventListener("load", function () {
  var table = document.querySelector("#results table"), found = {};
  var scores = function () {
    return Array.prototype.map.call(table.tBodies[0].rows, function (row) { return row.cells[5].textContent; });
  };
  var button = table.tHead.rows[0].cells[5].querySelector("button");
  found.before = scores();
  button.click(); found.up = scores();
  button.click(); found.down = scores();
  found.sort = table.tHead.rows[0].cells[5].getAttribute("aria-sort");
  var images = Array.prototype.slice.call(document.images);
  found.dark = matchMedia("(prefers-color-scheme: dark)").matches;
  found.paper = getComputedStyle(document.body).backgroundColor;
  found.overflow = document.documentElement.scrollWidth - innerWidth;
  found.complete = images.every(function (image) { return image.complete; });
  found.widths = images.map(function (image) { return image.naturalWidth; });
  document.title = JSON.stringify(found);
});
</script>
"""


def browse(page: Path, width: int, *flags: str) -> tuple[dict, str]:
    """Open a page in a real browser, run the probe in it; returns what it found and what the browser logged."""
    probed = page.with_suffix(".probed.html")
    probed.write_text(page.read_text().replace("</body>", PROBE + "</body>"))
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        quiet = ["--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"]
        command = [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", *quiet, f"--user-data-dir={profile}"]
        command += [f"--window-size={width},900", "--enable-logging=stderr", *flags]
        command += ["--dump-dom", probed.as_uri()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    title = re.search(r"<title>(\{.*?\})</title>", done.stdout, re.DOTALL)
    assert title, done.stderr[-2000:]
    return json.loads(title[1].replace("&amp;", "&").replace("&lt;", "<").replace("&gt;", ">")), done.stderr


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium")
def test_the_page_works_in_a_browser(runs: Path, tmp_path: Path) -> None:
    page = tmp_path / "r.html"
    succeed("report", runs, "--html", page)
    desktop, logged = browse(page, 1280)
    assert "CONSOLE" not in logged
    assert desktop["complete"]
    assert min(desktop["widths"]) > 300
    assert desktop["up"] == sorted(desktop["before"])
    assert desktop["down"] == sorted(desktop["before"], reverse=True)
    assert desktop["sort"] == "descending"
    assert desktop["overflow"] <= 0
    phone, logged = browse(page, 390, "--blink-settings=preferredColorScheme=0")
    assert "CONSOLE" not in logged
    assert phone["dark"]
    assert phone["paper"] != desktop["paper"]
    assert phone["overflow"] <= 0  # tables scroll inside their own box, the page does not
