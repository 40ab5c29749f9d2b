"""Fuzzers of everything that is read from a disk or a network. `python -m fuzz --help`, or `make fuzz`."""
