"""Installs a flight recorder in a client's engine."""

from __future__ import annotations

from weft.client.client import EngineClient
from weft.config import package_model_path
from weft.engine.features.flight_recorder import FlightRecorder
from weft.errors import InputError


def record(client: EngineClient, iterations: int, directory: str | None) -> FlightRecorder:
    """Record the engine's last `iterations` iterations, and write them into `directory` when a request fails (None:
    only on demand). The engine must be idle. Raises `InputError` without a vocabulary, and for a directory that is
    not writable."""
    built = client.built
    if built.compiler is None:
        raise InputError("a flight recorder needs a vocabulary; give the executor a tokenizer")
    proposals = built.engine.grammar.proposals
    recorder = FlightRecorder(
        built.engine.grammar.state,
        built.compiler.vocabulary,
        model=None if built.path == package_model_path() else str(built.path),
        sources=tuple(proposals.counters().tokens) if proposals is not None else (),
        iterations=iterations,
        directory=directory,
    )
    built.engine.set_recorder(recorder)
    return recorder
