"""JSON schemas, rewritten into equivalent ones that grammar libraries can enforce. `rewrite` is the way in."""

from weft.grammar.schema.rewrite import Rewritten, rewrite

__all__ = ["Rewritten", "rewrite"]
