"""Appends files that other processes wrote to their partitions, together and exactly once."""
