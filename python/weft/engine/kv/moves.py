"""Copies of whole pages that the host's bookkeeping takes for granted, and that the device is to make, in their order.

They are made in the order of the device's stream, before whatever else is launched in the same step: what a page is
copied from was written by work that was launched before, and what it is copied to is read and written by work that is
launched after. Nobody waits for them on the host.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class MoveKind(Enum):
    """From where to where a page is copied."""

    COPY = "from the device to the device"
    OFFLOAD = "from the device to the host"
    ONBOARD = "from the host to the device"


class Move(NamedTuple):
    """Page `source` is copied to page `target`; pages of the device and of the host are numbered each by themselves."""

    kind: MoveKind
    source: int
    target: int
