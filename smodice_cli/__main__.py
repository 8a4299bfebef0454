"""The program: `smodice`, or `python -m smodice_cli`."""

import signal
import sys

from smodice_cli.console import console
from smodice_cli.errors import SmodiceError


def main() -> None:
    """Entry point; a termination request is treated like Ctrl-C."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        from smodice_cli.commands import app
    except SmodiceError as error:  # a plug-in that cannot be loaded
        console.error(error.message, error.hint)
        sys.exit(error.exit_code)
    app(prog_name="smodice")


if __name__ == "__main__":
    main()
