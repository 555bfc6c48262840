"""What the captured decoder launches behaves alike at capture and at replay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from support.engine.toy import CapturedLoop, Tables
from support.grammar.grammars import some_guides
from support.launch_check import check_launched
from weft.runtime import CpuRuntime, cpu


@pytest.mark.parametrize("max_drafts", [0, 2])
def test_every_launched_function_keeps_the_rule(max_drafts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    found: dict[str, tuple[Callable[..., None], tuple[Any, ...]]] = {}
    original = cpu.Stream.launch

    def launch(self: cpu.Stream, fn: Callable[..., None], *args: Any) -> None:
        found[getattr(fn, "__qualname__", "")] = (fn, args)
        original(self, fn, *args)

    monkeypatch.setattr(cpu.Stream, "launch", launch)
    guides = [some_guides()[1], None]
    loop = CapturedLoop(CpuRuntime(), Tables.make(), guides, [1, 0], max_drafts, True)
    loop.run([5, 17])
    expected = {"_copy_masks", "_apply_masks", "_write_verified"}
    if max_drafts:
        expected |= {"_write_draft", "_clear_drafts"}
    assert expected <= set(found)
    grammar = loop.decoder.grammar
    host = [value for key, value in vars(grammar.state).items() if key.endswith("_host") and value.numel()]
    assert len(host) == (5 if max_drafts else 4)
    for name in expected:
        fn, args = found[name]
        with torch.inference_mode():
            check_launched(fn, *args, host=host)
