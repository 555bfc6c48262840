"""Benchmarks and the synthetic records they run on."""
