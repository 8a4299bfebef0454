"""The torture harness: kills, failing writes, power cuts, mutated files, abused flags and arguments. `make torture`.

Every try runs in a process forked from one that has everything imported, so thousands of them are cheap. After each
kill or failure the same command runs again and must end with the bytes of a run that nothing happened to, and with
nothing left behind. `tests/test_torture.py` is the quick form.
"""
