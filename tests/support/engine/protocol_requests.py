"""Requests that use the guided protocol at the same time, one of them without a guide, and LLMs for them."""

from __future__ import annotations

from weft import LLM, EngineConfig, Guide, SamplingParams, Speculation
from weft.config import Graphs

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 9}, "count": {"type": "integer"}},
    "required": ["name", "count"],
}
GUIDES = [
    Guide.regex(r"[a-z ]{14,}"),
    Guide.json_schema(SCHEMA),
    None,
    Guide.regex(r"(north|south) [a-z]{3,8}"),
    Guide.regex(r"[0-9]{12}"),
]
SAMPLINGS = [
    SamplingParams(max_tokens=14, temperature=temperature, seed=seed)
    for seed, temperature in enumerate((0.0, 1.0, 0.0, 1.0, 0.0))
]


def make_llm(speculation: Speculation | None = None, max_batch: int = 3, graphs: Graphs = "one") -> LLM:
    """Load weft-tiny with a few slots. A prompt is read in one step, whatever the time."""
    engine = EngineConfig(max_batch=max_batch, max_seq_len=512, graphs=graphs, max_stall=None)
    return LLM(device="cpu", speculation=speculation, engine=engine)
