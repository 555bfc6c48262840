"""All programs that mean harm: what they try, when that shows, and what the error says."""

from __future__ import annotations

from support.wasm.hostile_answers import ANSWERS
from support.wasm.hostile_modules import MODULES
from support.wasm.hostile_parts import Hostile
from support.wasm.hostile_runs import RUNS

HOSTILE: list[Hostile] = [*MODULES, *RUNS, *ANSWERS]
