"""The import rule: errors < config < recipes, artifacts < data < algos, envs < sources < inspect < stages < app."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import smodice_cli

PACKAGE = Path(smodice_cli.__file__).parent
RANKS = {
    "": 0,  # the package itself: its version
    "errors": 0,
    "methods": 0,
    "config": 1,
    "recipes": 2,
    "console": 1,
    "parallel": 1,
    "artifacts": 2,
    "data": 3,
    "algos": 4,
    "envs": 4,
    "sources": 5,
    "inspect": 6,
    "stages": 7,
    "cli": 8,
    "commands_look": 9,
    "commands_tools": 9,
    "app": 10,
    "__main__": 11,
}
MODULES = sorted(path for path in PACKAGE.rglob("*.py"))


def layer(module: str) -> str:
    """smodice_cli.stages.runner -> stages."""
    return [*module.split("."), ""][1]


def imports(path: Path) -> set[str]:
    """Modules of this package that a file imports, anywhere in it, also inside functions."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            module = node.module or ""
            found |= {f"{module}.{alias.name}" for alias in node.names} if module == "smodice_cli" else {module}
    found = {name for name in found if name.split(".")[0] == "smodice_cli"}
    return {"smodice_cli" if name == "smodice_cli.__version__" else name for name in found}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_lower_layers_never_import_higher_ones(path: Path) -> None:
    mine = path.relative_to(PACKAGE).parts[0].removesuffix(".py").replace("__init__", "")
    assert mine in RANKS, f"{mine} has no place in the layers"
    for module in imports(path):
        theirs = layer(module)
        assert theirs in RANKS, f"{path.name} imports {module}"
        assert RANKS[theirs] < RANKS[mine] or theirs == mine, f"{path.name} ({mine}) imports {module} ({theirs})"


def test_only_the_console_prints() -> None:
    for path in MODULES:
        calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        printing = [call.lineno for call in calls if isinstance(call.func, ast.Name) and call.func.id == "print"]
        assert not printing, f"{path} prints in lines {printing}"


def test_nothing_is_pickled() -> None:
    for path in MODULES:
        text = path.read_text()
        assert "import pickle" not in text
        assert "torch.save(" not in text
        assert "torch.load(" not in text
        assert "allow_pickle=True" not in text
