"""The path from a request to the engine: describe, submit, follow. `LLM` and `Executor` are fronts over it."""

from weft.client.builder import BuiltEngine, ModelSource
from weft.client.capacity import ClientLimits
from weft.client.client import EngineClient
from weft.client.inputs import InputProcessor
from weft.client.model_text import ModelText
from weft.client.responses import Response, ResponseDelta
from weft.core.request import FieldNames, Request

__all__ = [
    "BuiltEngine",
    "ClientLimits",
    "EngineClient",
    "FieldNames",
    "InputProcessor",
    "ModelSource",
    "ModelText",
    "Request",
    "Response",
    "ResponseDelta",
]
