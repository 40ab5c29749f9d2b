"""Queries in a real, local Spark."""
