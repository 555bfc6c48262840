"""The JSON schema of a guide in words that grammar libraries know (`weft.grammar.schema`), made once for both."""

from __future__ import annotations

import functools
import json

from weft.errors import GuideError
from weft.grammar.guide import Guide
from weft.grammar.schema.rewrite import Rewritten, rewrite


def rewritten(guide: Guide) -> Rewritten:
    """What is compiled for a guide of the kind json_schema. It must not be changed. Raises `GuideError` where nothing
    can satisfy the schema.
    """
    found = _rewritten(guide.source, guide.open_objects)
    if found.schema is False:
        raise GuideError("JSON schema: nothing can satisfy it")
    return found


def in_some_orders(guide: Guide) -> Rewritten:
    """The same for a library that can't be told of all orders otherwise: with some of them, where it lacks them."""
    found = rewritten(guide)
    if not found.lacks_orders:
        return found
    ordered = rewrite(json.loads(guide.source), guide.open_objects)
    return found if ordered.reason else ordered


@functools.lru_cache(maxsize=8)
def _rewritten(source: str, open_objects: bool) -> Rewritten:
    return rewrite(json.loads(source), open_objects, all_orders=True)
