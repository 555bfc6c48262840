"""Iterations: speed, overhead, acceptance."""
