"""What `LLM` says of parameters that other libraries have."""

from __future__ import annotations

from typing import Any

import pytest

from weft import LLM


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("max_model_len", "it is max_seq_len of engine=EngineConfig"),
        ("max_batch", r"engine=EngineConfig\(max_batch="),
        ("speculative_config", "speculation=Speculation.eagle3"),
        ("enable_lora", "there are no adapters; merge one"),
        ("devise", "did you mean device"),
    ],
)
def test_parameters_of_other_libraries_are_named(name: str, said: str) -> None:
    arguments: dict[str, Any] = {name: 1}
    with pytest.raises(TypeError, match=said):
        LLM(**arguments)
