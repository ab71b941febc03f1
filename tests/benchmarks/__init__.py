"""Benchmarks: `python -m tests.benchmarks` prints them."""
