"""Refuses instructions that change tables, which a copy of memory and globals would miss."""

from __future__ import annotations

from weft import _core
from weft.errors import GuideError


def refuse_table_changes(body: bytes) -> None:
    """Raise `GuideError` if a function body (its locals and instructions) changes a table."""
    if instruction := _core.wasm_table_change(body):
        raise GuideError(f"the WASM program changes a table ({instruction}), which weft can't take back")
