"""A stage runs when, and only when, something that determines its output has changed; it always says why."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import (
    ENV,
    EXPERT,
    OFFLINE,
    SMALL,
    TINY,
    Start,
    digest,
    listing,
    refuse,
    smodice,
    succeed,
    wait_for,
    write_recipe,
)


def stages(run: Path) -> dict[str, tuple[str, ...]]:
    """The commands that made the finished run."""
    return {
        "dataset.h5": (
            "build-dataset",
            "--env",
            ENV,
            "--offline",
            OFFLINE,
            "--expert",
            EXPERT,
            "--out",
            f"{run}/dataset.h5",
        ),
        "disc.safetensors": ("train-disc", "--data", f"{run}/dataset.h5", "--steps", "40", *SMALL),
        "value.safetensors": ("train-value", "--disc", f"{run}/disc.safetensors", "--steps", "40", *SMALL),
        "policy.safetensors": ("train-policy", "--value", f"{run}/value.safetensors", "--steps", "40", *SMALL),
        "eval.json": ("eval", "--policy", f"{run}/policy.safetensors", "--episodes", "2", "--threads", "1"),
    }


def test_a_second_run_of_every_stage_is_cached_and_touches_nothing(run: Path) -> None:
    before = listing(run)
    for name, command in stages(run).items():
        said = succeed(*command, "--json").json
        assert (said["status"], said["digest"]) == ("cached", digest(run / name))
    assert listing(run) == before


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        ("disc.safetensors", ("--set", "lr=0.001"), "lr changed from 0.003 to 0.001"),
        ("disc.safetensors", ("--seed", "5"), "the seed changed from 0 to 5"),
        ("value.safetensors", ("--gamma", "0.98"), "gamma changed from 0.99 to 0.98"),
        ("eval.json", ("--force",), "--force was given"),
    ],
)
def test_what_changed_is_said(run: Path, name: str, change: tuple[str, ...], reason: str) -> None:
    before = listing(run)
    said = succeed(*stages(run)[name], *change, "--dry-run", "--json").json
    assert (said["status"], said["reason"]) == ("would run", reason)
    assert listing(run) == before, "a dry run writes nothing"
    said = succeed(*stages(run)[name], *change, "--json").json
    assert (said["status"], said["reason"]) == ("done", reason)


def test_a_changed_input_is_said(run: Path) -> None:
    succeed(*stages(run)["disc.safetensors"], "--seed", "5")
    assert succeed(*stages(run)["value.safetensors"], "--json").json["reason"] == "its disc changed"


def test_a_lost_or_damaged_output_is_made_again(run: Path) -> None:
    expected = digest(run / "weights.h5")
    (run / "weights.h5").unlink()
    said = succeed(*stages(run)["value.safetensors"], "--json").json
    assert said["reason"] == "weights.h5, its weights, is missing or changed"
    assert digest(run / "weights.h5") == expected
    path = run / "disc.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\x7f")
    assert succeed(*stages(run)[path.name], "--json").json["reason"] == "disc.safetensors does not match its digest"


def test_force_gives_the_same_bytes(run: Path) -> None:
    for name, command in stages(run).items():
        before = digest(run / name)
        assert succeed(*command, "--force", "--json").json["digest"] == before


def test_a_foreign_file_is_refused_and_stays(run: Path) -> None:
    for name, command in stages(run).items():
        thesis = run / f"thesis-{name}"
        thesis.write_text("four years of work")
        before = listing(run)
        assert "not a readable smodice artifact" in refuse(5, *command, "--out", thesis)
        assert listing(run) == before
        assert thesis.read_text() == "four years of work"


def test_foreign_weights_are_refused_and_stay(run: Path) -> None:
    (run / "mine.weights.h5").write_text("four years of work")
    before = listing(run)
    refuse(5, *stages(run)["value.safetensors"], "--out", run / "mine.safetensors")
    assert listing(run) == before


def test_another_kind_of_artifact_is_not_overwritten(run: Path) -> None:
    before = listing(run)
    said = refuse(5, *stages(run)["policy.safetensors"], "--out", run / "disc.safetensors")
    assert "holds an artifact of the kind disc, not policy" in said
    assert listing(run) == before


def test_a_stage_never_overwrites_its_own_input(run: Path) -> None:
    before = listing(run)
    refuse(2, "train-disc", "--data", run / "dataset.h5", "--out", run / "dataset.h5", "--force")
    assert listing(run) == before


def test_a_folder_at_the_output_is_refused(run: Path) -> None:
    assert "is a folder" in refuse(5, *stages(run)["disc.safetensors"], "--out", run)


def test_changing_gamma_runs_train_value_and_what_follows_but_not_train_disc(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path / "tiny.toml", TINY)
    command = ("run", recipe, "--out", tmp_path / "run")

    def statuses(*flags: str) -> dict[str, str]:
        plan = succeed(*command, *flags, "--dry-run", "--json").json["plan"]
        return {Path(entry["path"]).name: entry["status"] for entry in plan}

    everything = ["dataset.h5", "disc.safetensors", "value.safetensors", "policy.safetensors", "eval.json"]
    assert statuses() == dict.fromkeys(everything, "would run")
    assert not (tmp_path / "run").exists(), "a dry run writes nothing"
    succeed(*command)
    assert statuses() == dict.fromkeys(everything, "cached")
    seed = tmp_path / "run" / "seed0"
    before = {name: (seed / name).stat().st_mtime_ns for name in everything[1:]}
    gamma = ("--set", "value.gamma=0.98")
    assert statuses(*gamma) == dict.fromkeys(everything, "would run") | dict.fromkeys(everything[:2], "cached")
    outcome = succeed(*command, *gamma)
    assert "train-value: gamma changed from 0.99 to 0.98" in outcome.stderr
    assert f"{seed / 'disc.safetensors'}: cached" in outcome.stderr
    changed = [name for name in everything[1:] if (seed / name).stat().st_mtime_ns != before[name]]
    assert changed == everything[2:]


def test_of_two_processes_on_one_stage_one_works_and_the_other_waits(run: Path, start: Start) -> None:
    out = run / "new.safetensors"
    command = ("train-disc", "--data", run / "dataset.h5", "--out", out, "--steps", "300", *SMALL, "--json")
    first = start(*command, "--checkpoint-every", "0.05")
    wait_for(lambda: (run / ".new.safetensors.ckpt").exists())
    second = start(*command)
    one, two = first.ends(), second.ends()
    assert (one.code, two.code) == (0, 0), one.stderr + two.stderr
    assert (one.json["status"], two.json["status"]) == ("done", "cached")
    assert one.json["digest"] == two.json["digest"] == digest(out)
    assert f"is being made by process {first.process.pid}: waiting" in two.stderr


def test_a_waiting_process_takes_over_when_the_first_is_killed(run: Path, start: Start) -> None:
    out = run / "new.safetensors"
    command = ("train-disc", "--data", run / "dataset.h5", "--out", out, "--steps", "300", *SMALL, "--json")
    first = start(*command, "--checkpoint-every", "0.05")
    wait_for(lambda: (run / ".new.safetensors.ckpt").exists())
    second = start(*command)
    wait_for(
        lambda: (
            "waiting" in Path(f"{second.output}.stderr").read_text() if Path(f"{second.output}.stderr").exists() else 0
        )
    )
    first.kill()
    outcome = second.ends()
    assert outcome.code == 0, outcome.stderr
    assert outcome.json["status"] == "done"
    assert "resuming from step" in outcome.stderr


def test_settings_of_other_stages_do_not_matter(run: Path, tmp_path: Path) -> None:
    recipe = write_recipe(
        tmp_path / "r.toml", {"disc": {"hidden": 16, "batch": 16, "steps": 40}, "value": {"gamma": 0.5}}
    )
    outcome = smodice("train-disc", "--data", run / "dataset.h5", "--config", recipe, "--json")
    assert outcome.json["status"] == "cached"
