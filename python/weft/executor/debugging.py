"""The tensors of iterations that `DebugConfig` asks for: kept until they are asked for, or written to files."""

from __future__ import annotations

import logging
import tempfile
from collections import abc, deque
from pathlib import Path

import numpy as np
import torch

from weft.client.client import EngineClient
from weft.engine.features.debug_tap import INPUTS, OUTPUTS, DebugTap
from weft.engine.sequence import Sequence
from weft.engine.stats import StepRecord
from weft.errors import InputError
from weft.executor.types import DebugConfig, DebugTensorsPerIteration

FOLDER = Path("tllm_debug", "PP_1", "TP_1")
"""Where TensorRT-LLM writes them, in the system's folder of temporary files: a folder for each iteration."""

_log = logging.getLogger(__name__)


def names_of(config: DebugConfig) -> list[str]:
    """The tensors that a config asks for. Raises `InputError` for a name that no iteration has."""
    named = config.debug_tensor_names or []
    unknown = [name for name in named if name not in (*INPUTS, *OUTPUTS)]
    if unknown:
        raise InputError(
            f"debug_tensor_names has {unknown[0]!r}; iterations have {', '.join((*INPUTS, *OUTPUTS))}. For tensors of "
            "the model ask for additional_model_outputs"
        )
    asked = [
        *(INPUTS if config.debug_input_tensors else ()),
        *(OUTPUTS if config.debug_output_tensors else ()),
    ]
    return [*dict.fromkeys((*asked, *named))]


class DebugTensors:
    """Of the last `debug_tensors_max_iterations` iterations, until they are taken; with 0 they go to files."""

    def __init__(self, config: DebugConfig, tap: DebugTap) -> None:
        self._tap = tap
        self._writes = config.debug_tensors_max_iterations == 0
        self._kept: deque[DebugTensorsPerIteration] = deque(maxlen=config.debug_tensors_max_iterations)

    @classmethod
    def of(cls, client: EngineClient, config: DebugConfig | None) -> DebugTensors | None:
        """Those of a client's engine, which is idle; None where nothing is asked for."""
        names = names_of(config) if config is not None else []
        if config is None or not names:
            return None
        engine = client.built.engine
        tap = DebugTap(engine.runtime, engine.runner.stream, names)
        client.call(lambda: engine.runner.set_tap(tap))
        made = cls(config, tap)
        client.observe(made.note)
        return made

    def note(self, record: StepRecord | None, took: abc.Sequence[Sequence]) -> None:
        """A step is done. On the engine's thread."""
        tensors = self._tap.take() if record is not None else {}
        if record is None or not tensors:
            return
        if self._writes:
            _write(record.number, tensors)
        else:
            self._kept.append(DebugTensorsPerIteration(record.number, tensors))

    def take(self) -> list[DebugTensorsPerIteration]:
        """Those that nobody was given yet, the oldest first."""
        taken = []
        while self._kept:
            taken.append(self._kept.popleft())
        return taken


def _write(number: int, tensors: dict[str, torch.Tensor]) -> None:
    folder = Path(tempfile.gettempdir()) / FOLDER / f"iteration_{number}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, tensor in tensors.items():
            is_known = tensor.dtype is not torch.bfloat16  # numpy has none
            np.save(folder / f"{name}.npy", (tensor if is_known else tensor.float()).numpy())
    except OSError as error:
        _log.warning("debug tensors of iteration %d can't be written to %s: %s", number, folder, error)
