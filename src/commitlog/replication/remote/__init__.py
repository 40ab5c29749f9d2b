"""Clients without files: what a node answers them, and what commitlog.connect() returns."""
