"""Tensors of iterations for debugging: what went in, what came out, of which iterations."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from support.executor import PROMPT, answer, request, until_final
from weft import Speculation
from weft.errors import InputError
from weft.executor import DebugConfig, Executor, ExecutorConfig, OutputConfig

ALL = DebugConfig(True, True, debug_tensors_max_iterations=100)


def test_iterations_give_what_goes_in_and_what_comes_out(make: Callable[..., Executor]) -> None:
    executor = make(debug_config=ALL, gather_generation_logits=True)
    one = request(4, output_config=OutputConfig(return_generation_logits=True))
    (response,) = until_final(executor, executor.enqueue_request(one))
    tokens = response.result.output_token_ids[0][len(PROMPT) :]
    executor.client.call(lambda: None)
    kept = executor.get_latest_debug_tensors()
    assert [each.iter for each in kept] == [0, 1, 2, 3]
    first, *others = (each.debug_tensors for each in kept)
    assert first["input_ids"].tolist() == PROMPT
    assert first["position_ids"].tolist() == list(range(len(PROMPT)))
    assert first["sequence_length"].tolist() == [len(PROMPT)]
    for place, tensors in enumerate(others):
        assert tensors["input_ids"].tolist() == [tokens[place]]
        assert tensors["position_ids"].tolist() == [len(PROMPT) + place]
        assert tensors["sequence_length"].tolist() == [len(PROMPT) + place + 1]
    assert response.result.generation_logits is not None
    logits = torch.cat([each.debug_tensors["logits"] for each in kept])
    assert torch.equal(logits, response.result.generation_logits[0])
    assert executor.get_latest_debug_tensors() == []


def test_drafts_and_neighbours_are_among_them(make: Callable[..., Executor]) -> None:
    executor = make(debug_config=ALL, speculation=Speculation.ngram(num_draft_tokens=3))
    for number in executor.enqueue_requests([request(12), request(12)]):
        until_final(executor, number)
    executor.client.call(lambda: None)
    widths = set()
    for each in executor.get_latest_debug_tensors():
        tensors = each.debug_tensors
        assert len(tensors["input_ids"]) == len(tensors["position_ids"])
        widths.add(len(tensors["input_ids"]) / len(tensors["sequence_length"]))
    assert widths & {4.0}  # a token and three drafts of each


def test_the_last_iterations_are_kept(make: Callable[..., Executor]) -> None:
    executor = make(debug_config=DebugConfig(debug_tensor_names=["logits"], debug_tensors_max_iterations=2))
    answer(executor, request(6))
    executor.client.call(lambda: None)
    kept = executor.get_latest_debug_tensors()
    assert [each.iter for each in kept] == [4, 5]
    assert [list(each.debug_tensors) for each in kept] == [["logits"]] * 2


def test_they_are_written_where_none_are_kept(
    make: Callable[..., Executor], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    executor = make(debug_config=DebugConfig(debug_tensor_names=["sequence_length"]))
    answer(executor, request(3))
    executor.client.call(lambda: None)
    assert executor.get_latest_debug_tensors() == []
    folder = tmp_path / "tllm_debug" / "PP_1" / "TP_1"
    assert sorted(path.name for path in folder.iterdir()) == [f"iteration_{number}" for number in range(3)]
    assert np.load(folder / "iteration_2" / "sequence_length.npy").tolist() == [len(PROMPT) + 2]


def test_a_name_that_there_is_not_is_refused() -> None:
    with pytest.raises(InputError, match="debug_tensor_names has 'colour'; iterations have input_ids"):
        Executor(None, ExecutorConfig(debug_config=DebugConfig(debug_tensor_names=["colour"])))
