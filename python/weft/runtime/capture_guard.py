"""Rejects torch ops that run during a capture instead of being captured."""

from __future__ import annotations

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from weft import _core
from weft.errors import GraphError
from weft.runtime.operations import ALLOCATIONS, is_composite, is_view
from weft.runtime.recorder import current_recorder
from weft.runtime.torch_internals import Operation, no_function_modes


class CaptureGuard(TorchDispatchMode):
    """Raises GraphError for an op that computes. Views, metadata and empty allocations pass.

    On the CPU such an op would run once, during the capture; on CUDA it would be captured. The guard ignores functions
    given to `launch`, and nodes that this thread runs during the capture."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Nothing compiles under this mode, and True would import the compiler at the first op.
        return False

    def __torch_dispatch__(self, func: Operation, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if _core.in_task() or current_recorder() or func.overloadpacket in ALLOCATIONS:
            return func(*args, **kwargs)
        if is_composite(func):
            with no_function_modes(), self:
                return func.decompose(*args, **kwargs)
        if not is_view(func):
            raise GraphError(
                f"{func} ran outside launch during a capture; call it in a function given to stream.launch, "
                "or before the capture"
            )
        return func(*args, **kwargs)
