"""Benchmarks of the cost of guides and the validity of answers."""
