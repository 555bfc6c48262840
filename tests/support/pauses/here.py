"""Pauses of this very process."""

from __future__ import annotations

import os
import subprocess


def pause_here(seconds: float) -> None:
    """Stop this process for so long."""
    me = os.getpid()
    subprocess.run(["/bin/sh", "-c", f"kill -STOP {me}; sleep {seconds}; kill -CONT {me}"], check=True)
