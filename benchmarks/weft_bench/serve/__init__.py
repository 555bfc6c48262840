"""Benchmarks of an executor under load."""
