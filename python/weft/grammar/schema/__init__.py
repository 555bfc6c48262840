"""Rewrites JSON schemas into equivalent ones that grammar libraries can enforce. Start with `rewrite.py`, whose
docstring lists the steps."""
