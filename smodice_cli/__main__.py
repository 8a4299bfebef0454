"""`python -m smodice_cli` is `smodice`."""

from smodice_cli.app import main

main()
