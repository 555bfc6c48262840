"""Says what programs written for TensorRT-LLM's Executor use that `weft.executor` lacks, or does otherwise.

`python -m weft.migration FILE.py ...`; `check_source` and `check_file` are the same for programs. Nothing that is
read is run. `api.json` holds TensorRT-LLM's names; what weft refuses is said in `weft.executor.types.refused`.
"""

from weft.migration.findings import Finding, Kind
from weft.migration.program import check_file, check_source

__all__ = ["Finding", "Kind", "check_file", "check_source"]
