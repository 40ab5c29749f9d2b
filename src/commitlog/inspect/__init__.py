"""A log as operators see it: one description of a partition and of a group, and one rate."""
