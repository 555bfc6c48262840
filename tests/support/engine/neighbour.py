"""A neighbour: the same sampled request again and again, beside whatever else an executor is sent."""

from __future__ import annotations

import gc
import threading
import time
from pathlib import Path

from weft.executor import Executor, Request, Response, SamplingConfig


class Neighbour:
    """Streams requests of `tokens` tokens until `end`. `gaps` are seconds between two of its responses, `answers` the
    different answers that it got: one, if nobody hurt it."""

    def __init__(self, executor: Executor, tokens: int = 100) -> None:
        self.gaps: list[float] = []
        self.answers: set[tuple[int | str, ...]] = set()
        self.num_answers = 0
        self._executor = executor
        self._tokens = tokens
        self._is_over = False
        self._thread = threading.Thread(target=self._run, name="neighbour")
        self._thread.start()

    def longest_gap(self) -> float:
        """Seconds, since the last call."""
        gaps, self.gaps = self.gaps, []
        return max(gaps, default=0.0)

    def end(self) -> None:
        """Stop after the answer that is on its way. Raises `AssertionError` where it does not come, or none did."""
        assert self._thread.is_alive(), "the neighbour's requests ended"
        self._is_over = True
        self._thread.join(timeout=60)
        assert not self._thread.is_alive(), "the neighbour waits for ever"

    def _run(self) -> None:
        while not self._is_over:
            request = Request(
                [0, 292, 28],
                self._tokens,
                streaming=True,
                end_id=-1,
                sampling_config=SamplingConfig(temperature=1.0, seed=7),
            )
            number = self._executor.enqueue_request(request)
            answer: list[int | str] = []
            is_final, last = False, time.perf_counter()
            while not is_final:
                for response in self._executor.await_responses(number):
                    now = time.perf_counter()
                    self.gaps.append(now - last)
                    last, is_final = now, ends(response)
                    answer += (
                        [response.error_msg] if response.has_error() else response.result.output_token_ids[0]
                    )
            self.answers.add(tuple(answer))
            self.num_answers += 1


def ends(response: Response) -> bool:
    """Whether a response is its request's last."""
    return response.has_error() or response.result.is_final


def resident_mib() -> float:
    """MiB of this process in memory."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20
