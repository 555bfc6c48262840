"""JSON schemas, rewritten into equivalent ones that grammar libraries can enforce. `rewrite.py` is the way in."""
