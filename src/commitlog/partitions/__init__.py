"""The parts of a partition: its state, what writes and reads it, and its recovery."""
