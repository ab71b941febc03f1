"""Benchmarks: `python -m tests.benchmarks` runs them, or the parts that it is given."""
