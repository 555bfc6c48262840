"""Attention windows: what config.json says of them, what an engine asks for, and models that have them against
transformers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from support.engine.checkpoints import save_checkpoint
from weft.config import EngineConfig
from weft.errors import InputError, ModelError
from weft.models.base import PagedKV
from weft.models.config import ModelConfig, parse_decoder
from weft.models.loading import load_model
from weft.models.windows import layer_windows
from weft.ops.attention import Rows, Window

CONFIG: dict[str, Any] = {
    "architectures": ["MistralForCausalLM"],
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
MIXED = ["sliding_attention", "full_attention"]


@pytest.mark.parametrize(
    ("said", "windows"),
    [
        ({"sliding_window": 24}, (24, 24)),
        ({"sliding_window": None}, ()),
        ({"sliding_window": 24, "use_sliding_window": False, "max_window_layers": 0}, ()),
        ({"sliding_window": 24, "max_window_layers": 0}, ()),
        ({"sliding_window": 24, "use_sliding_window": True, "max_window_layers": 0}, (24, 24)),
        ({"sliding_window": 24, "use_sliding_window": True, "max_window_layers": 1}, (0, 24)),
        ({"sliding_window": 24, "use_sliding_window": True, "max_window_layers": 2}, ()),
        ({"sliding_window": 24, "use_sliding_window": True}, ()),
        ({"sliding_window": 24, "use_sliding_window": True, "layer_types": MIXED}, (24, 0)),
    ],
)
def test_windows_are_read_by_layer(said: dict[str, Any], windows: tuple[int, ...]) -> None:
    config = parse_decoder({**CONFIG, **said}, "c", windowed=True)
    assert config.windows == windows and config.max_position_embeddings == 64
    assert parse_decoder({**CONFIG, **said}, "c").windows == (), "an architecture without windows"


def test_layers_of_kinds_that_are_not_known_are_refused() -> None:
    for kinds in (["sliding_attention"], ["chunked_attention", "full_attention"], "full_attention"):
        said = {"sliding_window": 24, "layer_types": kinds}
        with pytest.raises(ModelError, match=r"'layer_types' is .* for each of the 2 layers"):
            parse_decoder({**CONFIG, **said}, "c", windowed=True)


def test_an_engines_windows_are_repeated_over_the_layers() -> None:
    config = replace(parse_decoder(CONFIG, "c"), num_layers=5)
    own = replace(config, windows=(0, 0, 10, 10, 10))

    def sizes(*asked: int, of: ModelConfig = config, sinks: int = 0) -> list[int]:
        windows = layer_windows(of, asked, sinks, 64)
        assert {window.sinks for window in windows if window.size} <= {sinks}
        return [window.size for window in windows]

    assert sizes() == [0, 0, 0, 0, 0]
    assert sizes(8, sinks=2) == [8, 8, 8, 8, 8]
    assert sizes(8, 32) == [8, 32, 8, 32, 8]
    assert sizes(8, 63, 64, 65, 9, 1) == [8, 63, 0, 0, 9]
    assert sizes(of=own) == [0, 0, 10, 10, 10]
    assert sizes(8, 32, of=own, sinks=7) == [8, 32, 8, 10, 8]
    assert sizes(64, of=own, sinks=9) == [0, 0, 10, 10, 10]
    for asked, sinks in (((8, 32), 8), ((), 10)):
        with pytest.raises(InputError, match=rf"sink_tokens is {sinks}; .* window, {sinks}, which"):
            layer_windows(own, asked, sinks, 64)


@pytest.mark.parametrize("windows", [(0,), (-1,), (8, 0), (8.0,), (True,), 8, [8], "8", None])
def test_windows_that_are_none_are_refused(windows: Any) -> None:
    with pytest.raises(
        InputError, match=r"attention_windows is .* a tuple of whole numbers, each at least 1"
    ):
        EngineConfig(attention_windows=windows)


@pytest.mark.parametrize(
    ("windows", "sinks", "message"),
    [
        ((), -1, "at least 0"),
        ((), 1.0, "a whole number"),
        ((), True, "a whole number"),
        ((9, 8), 8, "below the smallest of attention_windows, 8"),
        ((1,), 1, "below the smallest of attention_windows, 1"),
    ],
)
def test_sinks_that_a_window_has_no_room_for_are_refused(
    windows: tuple[int, ...], sinks: Any, message: str
) -> None:
    with pytest.raises(InputError, match=f"sink_tokens is {sinks}; .*{message}"):
        EngineConfig(attention_windows=windows, sink_tokens=sinks)


def test_sinks_alone_are_no_limit() -> None:
    assert EngineConfig(sink_tokens=4).attention_windows == ()
    assert set(layer_windows(parse_decoder(CONFIG, "c"), (), 4, 64)) == {Window()}


OWN = {
    "mistral": ("mistral", {"sliding_window": 11}),
    "qwen2": ("qwen2", {"sliding_window": 11, "use_sliding_window": True, "max_window_layers": 3}),
    "qwen3": ("qwen3", {"sliding_window": 7, "use_sliding_window": True, "max_window_layers": 0}),
    "layer types": (
        "qwen3",
        {"sliding_window": 5, "use_sliding_window": True, "layer_types": [*MIXED, *MIXED, MIXED[0]]},
    ),
    "not used": ("qwen2", {"sliding_window": 11, "use_sliding_window": False}),
    "llama": ("llama", {"sliding_window": 11}),
}


@pytest.mark.parametrize("case", OWN)
def test_models_with_windows_match_transformers(case: str, tmp_path: Path) -> None:
    """In one part, in chunks that straddle the window, and token by token."""
    model_type, overrides = OWN[case]
    save_checkpoint(tmp_path, model_type, **overrides)
    oracle = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager", dtype=torch.float32)
    model = load_model(tmp_path)
    tokens = torch.randint(0, 1000, (1, 60), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        wanted = oracle(tokens).logits
        for parts in ([60], [8, 20, 3, 25, 4], [30] + [1] * 30):
            kv = PagedKV.for_model(model, 17, 4)
            table, start, got = torch.arange(1, 17, dtype=torch.int32)[None], 0, []
            for part in parts:
                rows = Rows(table, torch.tensor([start]), part)
                got.append(model.logits(model.forward(tokens[:, start : start + part], kv, rows).last))
                start += part
            torch.testing.assert_close(torch.cat(got, 1), wanted, atol=2e-4, rtol=2e-4)
