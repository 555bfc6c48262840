"""Requests that end early: one is cancelled, one reaches its time limit."""

from __future__ import annotations

import argparse
from datetime import timedelta

from weft import load_tokenizer, package_model_path
from weft.executor import Executor, ExecutorConfig, Request


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=package_model_path())
    parser.add_argument("--device", default="auto")
    arguments = parser.parse_args()
    prompt = load_tokenizer(arguments.model).encode("Text: Ada is a painter.")
    with Executor(arguments.model, ExecutorConfig(), device=arguments.device) as executor:
        cancelled, late = executor.enqueue_requests(
            [
                Request(prompt, 1000, end_id=-1, streaming=True),
                Request(prompt, 1000, end_id=-1, allotted_time_ms=timedelta(milliseconds=100)),
            ]
        )
        executor.await_responses(cancelled)  # its first tokens
        executor.cancel_request(cancelled)
        while not (responses := executor.await_responses(cancelled))[-1].result.is_final:
            pass
        print(f"request {cancelled}: {responses[-1].result.finish_reasons[0].name}")
        (response,) = executor.await_responses(late)
        print(f"request {late}: {response.result.finish_reasons[0].name}")


if __name__ == "__main__":
    main()
