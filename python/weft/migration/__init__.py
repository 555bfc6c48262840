"""Finds names that `weft.executor` lacks or treats differently, in programs written for TensorRT-LLM's Executor.

Run `python -m weft.migration FILE.py ...` from the command line, or call `check_source` and `check_file` from Python.
Programs are parsed, not run. `api.json` holds TensorRT-LLM's names, and `weft.executor.types.refused` lists the names
that weft refuses.
"""

from weft.migration.findings import Finding, FindingKind
from weft.migration.program import check_file, check_source

__all__ = ["Finding", "FindingKind", "check_file", "check_source"]
