"""Models in the tests are tiny: one thread is faster for them than many, and leaves the other cores to their work."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
