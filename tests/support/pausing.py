"""Pauses the test's own process."""

from __future__ import annotations

import os
import subprocess


def pause_here(seconds: float) -> None:
    """Stop this process. Another process continues it after `seconds`."""
    me = os.getpid()
    subprocess.run(["/bin/sh", "-c", f"kill -STOP {me}; sleep {seconds}; kill -CONT {me}"], check=True)
