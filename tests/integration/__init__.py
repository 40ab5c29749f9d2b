"""Whole programs: several processes, threads and forks, the wheel, the examples and the documentation."""
