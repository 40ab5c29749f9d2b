"""Partitions under one name: the choice between them, and the catalog of what a directory holds."""
