"""Collects the tensors that `DebugConfig` selects in each iteration, and keeps them until taken or writes them to
files."""

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
"""TensorRT-LLM's folder for debug tensors, below the system's temporary folder. Each iteration gets a subfolder."""

_log = logging.getLogger(__name__)


def names_of(config: DebugConfig) -> list[str]:
    """The names of the tensors that a config selects. Raises `InputError` for a name that no iteration has."""
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
    """Keeps the debug tensors of the last `debug_tensors_max_iterations` iterations until they are taken. With 0 it
    writes them to files."""

    def __init__(self, config: DebugConfig, tap: DebugTap) -> None:
        self._tap = tap
        self._writes = config.debug_tensors_max_iterations == 0
        self._kept: deque[DebugTensorsPerIteration] = deque(maxlen=config.debug_tensors_max_iterations)

    @classmethod
    def of(cls, client: EngineClient, config: DebugConfig | None) -> DebugTensors | None:
        """Start to collect in a client's engine, which must be idle. None if the config selects no tensors."""
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
        """Keep or write the tensors of a step. Called on the engine's thread."""
        tensors = self._tap.take() if record is not None else {}
        if record is None or not tensors:
            return
        if self._writes:
            _write(record.number, tensors)
        else:
            self._kept.append(DebugTensorsPerIteration(record.number, tensors))

    def take(self) -> list[DebugTensorsPerIteration]:
        """Take the kept tensors, oldest iteration first."""
        taken = []
        # Not a loop over the deque: the engine's thread may append at any time.
        while self._kept:
            taken.append(self._kept.popleft())
        return taken


def _write(number: int, tensors: dict[str, torch.Tensor]) -> None:
    folder = Path(tempfile.gettempdir()) / FOLDER / f"iteration_{number}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, tensor in tensors.items():
            is_known = tensor.dtype is not torch.bfloat16  # numpy has no bfloat16
            np.save(folder / f"{name}.npy", (tensor if is_known else tensor.float()).numpy())
    except OSError as error:
        _log.warning("debug tensors of iteration %d can't be written to %s: %s", number, folder, error)
