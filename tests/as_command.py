"""What a test's process does: the whole of `smodice ARGUMENTS`. On its own, so that the process imports little else."""

from __future__ import annotations

import os
import sys


def be_smodice(arguments: list[str], output: str, limit: int | None) -> None:
    """Run the command with its output in files; `limit` bounds the size of every file it writes."""
    for stream, name in ((sys.stdout, "stdout"), (sys.stderr, "stderr")):
        descriptor = os.open(f"{output}.{name}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(descriptor, stream.fileno())
    sys.argv = ["smodice", *arguments]
    if limit is not None:
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    from smodice_cli.__main__ import main

    main()
