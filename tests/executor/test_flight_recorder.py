"""An executor's flight recorder: what failed is on file, and replays to the same end."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from weft import Guide
from weft.cli import app
from weft.config import Speculation
from weft.executor import (
    Executor,
    ExecutorConfig,
    FlightRecorderConfig,
    GuidedDecodingConfig,
    GuidedDecodingParams,
    Request,
)

PROMPT = [0, 292, 28, 947, 28, 1143]


@pytest.mark.parametrize("overlap", [False, True])
def test_a_failed_request_is_on_file(tmp_path: Path, overlap: bool) -> None:
    """Bad words and a guide together leave nothing; the file replays to the same status."""
    config = ExecutorConfig(
        guided_decoding_config=GuidedDecodingConfig(),
        speculation=Speculation.eagle3(num_draft_tokens=2),
        flight_recorder=FlightRecorderConfig(64, str(tmp_path / "made" / "here")),
        overlap=overlap,
    )
    with Executor(None, config) as executor:
        executor.register_guide("digits", Guide.regex("[0-9]{8}"))
        guided = GuidedDecodingParams.handle("digits")
        good, bad = executor.enqueue_requests(
            [
                Request(PROMPT, max_tokens=16, guided_decoding_params=guided),
                Request(
                    PROMPT,
                    max_tokens=16,
                    guided_decoding_params=guided,
                    bad_words=[[token] for token in digits(executor)],
                ),
            ]
        )
        assert not executor.await_responses(good)[0].has_error()
        assert executor.await_responses(bad)[0].has_error()
        assert executor.flight_recorder is not None
        executor.flight_recorder.write(tmp_path / "by hand.json.gz")
    files = sorted(tmp_path.rglob("*.json*"))
    assert len(files) == 2
    for file in files:
        result = CliRunner().invoke(app, ["replay", str(file), "--seeds", "4"])
        assert result.exit_code == 0, result.output


def digits(executor: Executor) -> list[int]:
    vocabulary = executor.client.built.text.vocabulary
    assert vocabulary is not None
    return [i for i, token in enumerate(vocabulary.tokens) if token and token.isdigit()]
