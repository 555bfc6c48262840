"""Benchmarks, and the synthetic records on which they run."""
