"""Benchmarks: ``python -m benchmarks.NAME``. Each prints its own figures; none asserts a time."""
