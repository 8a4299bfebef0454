"""The import rule: what is below never imports what is above, and nothing heavy is imported before it is used.

And of the tests: each stands alone.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import smodice_cli
from smodice_cli.cli import explain

PACKAGE = Path(smodice_cli.__file__).parent
# From the bottom to the top; a module or package imports only what is named before it, or beside it.
LAYERS = (
    ("errors", "interrupts", "lazy", ""),  # the last is the package itself: its version
    ("config", "console", "containers", "files", "parallel", "registry", "statistics", "tracking"),
    ("artifacts",),
    ("data", "engine", "orders"),
    ("graphs", "steering", "training"),
    ("algos", "envs"),  # which never import each other
    ("rollout", "stages"),  # of the stages only their table, which imports no stage
    ("sources",),
    ("exports", "views"),
    ("stages.*",),
    ("engines",),
    ("experts", "pipeline", "recipes", "schedule", "summary"),
    ("completion", "execution", "jobs"),
    ("cli",),
    ("commands",),
    ("__main__",),
)
RANKS = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}
ALONE = ("algos", "envs")
MODULES = sorted(path for path in PACKAGE.rglob("*.py"))
HEAVY = {
    *("torch", "mujoco", "matplotlib", "numpy", "h5py", "gymnasium", "scipy", "jinja2", "pyarrow", "zarr", "onnx"),
}


def name_of(path: Path) -> str:
    """smodice_cli/stages/select_f.py -> stages.select_f."""
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix("__init__").rstrip(".")


NAMES = {name_of(path) for path in MODULES}


def layer(module: str) -> str:
    """stages -> stages, stages.select_f -> stages.*, views.render.html -> views."""
    first, dot, _ = module.partition(".")
    return f"{first}.*" if dot and f"{first}.*" in RANKS else first


def nodes(path: Path, everywhere: bool) -> Iterator[ast.AST]:
    """The parts of a module, those inside functions and under TYPE_CHECKING only where `everywhere`."""
    waiting: list[ast.AST] = [ast.parse(path.read_text())]
    while waiting:
        node = waiting.pop()
        yield node
        if everywhere or not isinstance(node, ast.FunctionDef | ast.Lambda | ast.If):
            waiting += ast.iter_child_nodes(node)


def imports(path: Path, everywhere: bool = True) -> set[str]:
    """The modules of this package that a file imports."""
    found: set[str] = set()
    for node in nodes(path, everywhere):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    inside = {name.removeprefix("smodice_cli").lstrip(".") for name in found if name.split(".")[0] == "smodice_cli"}
    return {name if name in NAMES else name.rpartition(".")[0] for name in inside}


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_lower_layers_never_import_higher_ones(path: Path) -> None:
    mine = layer(name_of(path))
    assert mine in RANKS, f"{mine} has no place in the layers"
    for module in imports(path):
        theirs = layer(module)
        assert theirs in RANKS, f"{name_of(path)} imports {module}"
        same = theirs == mine or (RANKS[theirs] == RANKS[mine] and mine not in ALONE)
        assert RANKS[theirs] < RANKS[mine] or same, f"{name_of(path)} ({mine}) imports {module} ({theirs})"


def test_no_module_imports_itself_by_way_of_others() -> None:
    """A package's own modules may import it, and it names them only as text or inside functions."""
    graph = {name_of(path): imports(path, everywhere=False) - {name_of(path)} for path in MODULES}
    TopologicalSorter(graph).prepare()  # raises a CycleError that names the cycle


def test_importing_every_command_and_stage_loads_nothing_heavy() -> None:
    code = (
        f"import sys, smodice_cli.commands; heavy = {HEAVY} & set(sys.modules); sys.exit(repr(heavy) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("arguments", "absent"),
    [
        (["settings", "--json"], {"torch", "mujoco", "numpy"}),
        (["envs"], {"torch", "mujoco", "matplotlib"}),
        (["status", "{run}"], {"torch", "mujoco", "matplotlib"}),
        (["inspect", "{run}/weights.h5"], {"torch", "mujoco", "matplotlib"}),
        (
            ["train-disc", "--data", "{run}/dataset.h5", "--steps", "40", "--set", "hidden=16", "--set", "batch=16"],
            {"torch"},
        ),
        (["eval", "--policy", "{run}/policy.safetensors", "--episodes", "2", "--threads", "1"], {"torch"}),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_command_loads_only_what_it_works_with(arguments: list[str], absent: set[str], finished_run: Path) -> None:
    """A stage whose artifact is there does no work; scores are made without torch."""
    words = [word.format(run=finished_run) for word in arguments]
    code = (
        "import sys; from smodice_cli.commands import app\n"
        f"try: app({words!r}, prog_name='smodice')\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        f"found = {absent} & set(sys.modules); sys.exit(repr(found) if found else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


ONLY = """
import sys

class Absent:  # packages that are not installed
    def find_spec(self, name, path=None, target=None):
        package = name.partition(".")[0]
        if package not in {"numpy", "safetensors", "smodice", "smodice_cli", *sys.stdlib_module_names}:
            raise ModuleNotFoundError(f"No module named {package!r}", name=package)

sys.meta_path.insert(0, Absent())
"""


def test_a_robot_needs_numpy_and_safetensors_alone(finished_run: Path) -> None:
    code = "import smodice; p = smodice.load_policy(sys.argv[1]); assert p.act([0.0] * p.obs_dim).shape == (p.act_dim,)"
    command = [sys.executable, "-c", ONLY + code, finished_run / "policy.safetensors"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_package_that_is_not_installed_is_named() -> None:
    error = ModuleNotFoundError("No module named 'torch'", name="torch.nn")
    assert explain(error) == ("this needs the package torch, which is not installed", "pip install torch", 4)
    assert explain(ModuleNotFoundError("x", name="smodice_cli.lost"))[2] == 1, "an error of ours"


def test_only_the_console_prints() -> None:
    for path in MODULES:
        calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        printing = ("print", "echo", "secho", "sys.stdout.write", "sys.stderr.write")
        found = [call.lineno for call in calls if ast.unparse(call.func).removeprefix("typer.") in printing]
        assert not found or path.name == "console.py", f"{path} prints in lines {found}"


def test_nothing_is_pickled() -> None:
    for path in MODULES:
        text = path.read_text()
        assert not re.search(r"^\s*(import|from) (\w+, )*(c?pickle|dill|joblib|shelve)\b", text, re.MULTILINE)
        assert "torch.save(" not in text
        assert "torch.load(" not in text
        assert "allow_pickle=True" not in text


TESTS = sorted(Path(__file__).parent.glob("test_*.py"))


@pytest.mark.parametrize("path", TESTS, ids=lambda path: path.stem)
def test_no_test_imports_another(path: Path) -> None:
    """What two of them need is in conftest.py, or in a helper that is no test."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    names = {part for node in nodes if isinstance(node, ast.alias) for part in node.name.split(".")}
    names |= {part for node in nodes if isinstance(node, ast.ImportFrom) for part in (node.module or "").split(".")}
    assert not names & {test.stem for test in TESTS}
