"""The program: `smodice`, or `python -m smodice_cli`."""

import os
import sys


def main() -> None:
    """Entry point; a termination request is treated like Ctrl-C."""
    _open_closed_streams()
    from smodice_cli import interrupts

    interrupts.leave_at_once()
    os.environ["PYTHONSAFEPATH"] = "1"  # no process of ours imports what happens to lie in the current folder
    from smodice_cli.console import console, guard_streams
    from smodice_cli.errors import SmodiceError, UsageError
    from smodice_cli.registry import PLUGINS

    guard_streams()
    try:
        from smodice_cli.commands import app
    except SmodiceError as error:  # a plug-in that cannot be loaded
        console.error(error.message, error.hint)
        sys.exit(error.exit_code)
    except Exception as error:
        if not os.environ.get(PLUGINS) or "--debug" in sys.argv:
            raise
        what = f"{PLUGINS}: what is added there cannot be used ({type(error).__name__}: {error})"
        console.error(what, "run again with --debug for the traceback")
        sys.exit(UsageError.exit_code)
    try:
        app(prog_name="smodice")
    finally:
        interrupts.ignore()
        sys.stdout.flush()


def _open_closed_streams() -> None:
    """Streams that were closed for us, and for what we start, lead nowhere: else the next file becomes one of them."""
    for descriptor, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest that is free: this one
            setattr(sys, name, open(descriptor, mode, closefd=False))  # noqa: SIM115 (it stays open)


if __name__ == "__main__":
    if not sys.flags.safe_path:
        sys.path.pop(0)  # the current folder, which `python -m` puts first
    main()
