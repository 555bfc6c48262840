"""JSON schemas, rewritten into equivalent ones that grammar libraries can enforce. `rewrite.py` is the entry; its
docstring names the steps."""
