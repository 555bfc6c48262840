"""Finds names in programs for TensorRT-LLM's Executor that `weft.executor` lacks or treats differently.

`python -m weft.migration FILE.py ...` runs it from the command line; `check_source` and `check_file` from Python.
Programs are parsed, not run. `api.json` holds TensorRT-LLM's names; `weft.executor.types.refused` lists the names that
weft refuses.
"""

from weft.migration.findings import Finding, FindingKind
from weft.migration.program import check_file, check_source

__all__ = ["Finding", "FindingKind", "check_file", "check_source"]
