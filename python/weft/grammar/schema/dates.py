"""Dates that a calendar has, as patterns: what grammar libraries know as `format: date` includes 29 February of any
year, and the year 0.
"""

from __future__ import annotations

from typing import Any

_YEAR = "(?:[0-9]{3}[1-9]|[0-9]{2}[1-9][0-9]|[0-9][1-9][0-9]{2}|[1-9][0-9]{3})"
_FOURTH = "(?:0[48]|[2468][048]|[13579][26])"
_LEAP = f"(?:[0-9]{{2}}{_FOURTH}|{_FOURTH}00)"
_SHORT = "(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8])"
_LONG = "(?:0[13-9]|1[0-2])-(?:29|30)|(?:0[13578]|1[02])-31"
DATE = f"(?:{_LEAP}-02-29|{_YEAR}-(?:{_SHORT}|{_LONG}))"
_ZONE = "(?:[Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_TIME = f"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]+)?{_ZONE}"
PATTERNS = {"date": f"^{DATE}$", "date-time": f"^{DATE}[Tt]{_TIME}$"}


def spell_dates(node: dict[str, Any]) -> None:
    """Puts a pattern in place of such a format, where it has none beside it."""
    pattern = PATTERNS.get(node.get("format", ""))
    if pattern is not None and "pattern" not in node:
        del node["format"]
        node["pattern"] = pattern
