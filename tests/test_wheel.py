"""What people install: the wheel, alone in an environment outside the checkout, and an empty folder to work in."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

from smodice_cli import __version__, recipes

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("wheel")]
ROOT = Path(__file__).parents[1]
NOTEBOOK = ROOT / "docs" / "notebook.ipynb"
FEW = [f"--set={section}.{name}" for section in ("disc", "value", "policy") for name in ("steps=20", "hidden=8")]
EXECUTE = """
import nbclient, nbformat, sys
notebook = nbformat.read(sys.argv[1], 4)
nbclient.NotebookClient(notebook, timeout=900, startup_timeout=300, kernel_name="python3").execute()
"""


def done(*command: str | Path, cwd: Path = ROOT) -> str:
    """The output of a process that must not fail, and that knows nothing of this checkout."""
    hidden = ("PYTHONPATH", "VIRTUAL_ENV", "SMODICE_PLUGINS")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    found = subprocess.run(list(map(str, command)), cwd=cwd, env=environment, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout + found.stderr
    return found.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist and the wheel made from it, as a release is."""
    folder = tmp_path_factory.mktemp("built")
    done(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", folder)
    (sdist,) = folder.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "source", filter="data")
    (source,) = (folder / "source").iterdir()
    done(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", folder, source)
    return folder


@pytest.fixture(scope="module")
def fresh(built: Path) -> Path:
    """The programs of an environment with the wheel, which finds the packages that it needs where this one has them."""
    home, (wheel,) = built / "environment", built.glob("*.whl")
    done(sys.executable, "-m", "venv", "--without-pip", home)
    packages = home / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    (packages / "needed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    python = home / "bin" / "python"
    done(sys.executable, "-m", "pip", "-q", "--python", python, "install", "--no-deps", "--no-index", wheel)
    return home / "bin"


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    return tmp_path


def test_the_wheel_has_every_file_and_recipe_and_the_sdist_the_tests(built: Path) -> None:
    (wheel,), (sdist,) = built.glob("*.whl"), built.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
    told = subprocess.run(["git", "ls-files", "smodice", "smodice_cli", "pipelines"], cwd=ROOT, capture_output=True)
    tracked = [name for name in told.stdout.decode().splitlines() if (ROOT / name).is_file()]
    if not tracked:  # no checkout, but the sdist itself
        pytest.skip("git does not know this folder")
    wanted = {name.replace("pipelines/", "smodice_cli/pipelines/", 1) for name in tracked if not name.endswith(".mk")}
    assert wanted <= held
    assert {name.split("/")[0] for name in held} == {"smodice", "smodice_cli", f"smodice-{__version__}.dist-info"}
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"tests/test_wheel.py", "pipelines/rules.mk", "Makefile", "CHANGELOG.md", "CITATION.cff"} <= names


def test_it_is_the_wheel_that_is_used(fresh: Path, empty: Path) -> None:
    code = "import smodice, smodice_cli; print(smodice.__file__); print(smodice_cli.__file__)"
    for path in done(fresh / "python", "-c", code, cwd=empty).splitlines():
        assert Path(path).is_relative_to(fresh.parent)
    assert done(fresh / "smodice", "--version", cwd=empty) == f"smodice {__version__}\n"


def test_recipes_are_listed_in_an_empty_folder(fresh: Path, empty: Path) -> None:
    told = json.loads(done(fresh / "smodice", "recipes", "--json", cwd=empty))
    assert set(told) == set(recipes.names())
    assert all(Path(recipe["path"]).is_relative_to(fresh.parent) for recipe in told.values())
    (empty / "mine.toml").write_text(done(fresh / "smodice", "recipes", "hopper", cwd=empty))
    assert (empty / "mine.toml").read_text() == recipes.names()["hopper"].read_text()


@pytest.mark.parametrize(
    ("name", "offline", "expert"),
    [
        ("pointmass-4direction", "sim:pointmass-4direction#600", "sim:pointmass-4direction#success=20"),
        ("hopper", "sim:hopper-random#600", "sim:hopper-expert#traj=0"),
    ],
)
def test_recipes_run_by_name(name: str, offline: str, expert: str, fresh: Path, empty: Path) -> None:
    fewer = ["--offline", offline, "--expert", expert, *FEW, "--set=eval.episodes=2", "--set=eval.curve_episodes=0"]
    summary = json.loads(done(fresh / "smodice", "run", name, *fewer, "--json", cwd=empty))
    assert summary["per_seed"]["0"]["episodes"] == 2
    assert (empty / "runs" / name / "seed0" / "policy.safetensors").is_file()


def test_the_notebook_runs(fresh: Path, empty: Path) -> None:
    shutil.copy(NOTEBOOK, empty)
    done(fresh / "python", "-c", EXECUTE, NOTEBOOK.name, cwd=empty)
    assert (empty / "runs" / "floor" / "policy.safetensors").is_file()


def test_the_stored_notebook_has_its_outputs_and_no_errors() -> None:
    cells = [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]
    kinds = [output["output_type"] for cell in cells for output in cell["outputs"]]
    assert kinds
    assert "error" not in kinds
