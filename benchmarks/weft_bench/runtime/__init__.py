"""Benchmarks of replays, host functions and the mask kernel."""
