"""The commands, in the order in which the help lists them: importing this package registers them."""

# isort: off
from smodice_cli.cli import app
from smodice_cli.commands import stages
from smodice_cli.commands import run
from smodice_cli.commands import look
from smodice_cli.commands import export
from smodice_cli.commands import tools

__all__ = ["app", "export", "look", "run", "stages", "tools"]
