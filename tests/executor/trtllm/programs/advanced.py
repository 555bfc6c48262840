"""Many prompts at once: token ids from one CSV file into another, whole or as a stream, in one or several beams."""

from __future__ import annotations

import argparse
import csv
from collections import defaultdict
from datetime import timedelta
from typing import Any

import weft.executor as trtllm

Answers = dict[int, dict[int, list[int]]]
"""Tokens by request and beam."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Ask an executor for many prompts at once")
    parser.add_argument("--model_path", type=str, required=True, help="the directory of a model")
    parser.add_argument("--input_tokens_csv_file", type=str, required=True, help="a prompt on each line")
    parser.add_argument("--output_tokens_csv_file", type=str, default="output_tokens.csv")
    parser.add_argument("--beam_width", type=int, default=1)
    parser.add_argument("--streaming", action="store_true", help="take tokens as they come")
    parser.add_argument("--exclude_input_from_output", action="store_true", help="without the prompt")
    parser.add_argument("--max_tokens", type=int, default=10, help="tokens of an answer")
    parser.add_argument("--timeout_ms", type=int, default=10000, help="how long to wait for a response")
    return parser.parse_args()


def enqueue(args: argparse.Namespace, executor: Any) -> list[int]:
    """A request for each line, all alike but for the prompt."""
    sampling_config = trtllm.SamplingConfig(args.beam_width)
    output_config = trtllm.OutputConfig()
    output_config.exclude_input_from_output = args.exclude_input_from_output
    with open(args.input_tokens_csv_file) as file:
        prompts = [[int(cell) for cell in line] for line in csv.reader(file)]
    return [
        executor.enqueue_request(
            trtllm.Request(
                input_token_ids=prompt,
                max_tokens=args.max_tokens,
                streaming=args.streaming,
                sampling_config=sampling_config,
                output_config=output_config,
            )
        )
        for prompt in prompts
    ]


def collect(args: argparse.Namespace, request_ids: list[int], executor: Any) -> Answers:
    """What comes of all of them, in the order in which it comes."""
    answers: Answers = defaultdict(lambda: defaultdict(list))
    open_ids = set(request_ids)
    while open_ids:
        responses = executor.await_responses(timedelta(milliseconds=args.timeout_ms))
        if not responses:
            raise TimeoutError(f"nothing came of {sorted(open_ids)} in {args.timeout_ms} ms")
        for response in responses:
            if response.has_error():
                raise RuntimeError(f"request {response.request_id}: {response.error_msg}")
            result = response.result
            for beam, tokens in enumerate(result.output_token_ids):
                answers[response.request_id][beam].extend(tokens)
            if result.is_final:
                open_ids.remove(response.request_id)
    return answers


def main() -> None:
    args = arguments()
    executor_config = trtllm.ExecutorConfig(args.beam_width)
    executor = trtllm.Executor(args.model_path, trtllm.ModelType.DECODER_ONLY, executor_config)
    if executor.can_enqueue_requests():
        request_ids = enqueue(args, executor)
        answers = collect(args, request_ids, executor)
        with open(args.output_tokens_csv_file, "w") as file:
            writer = csv.writer(file)
            writer.writerows(
                answers[number][beam] for number in request_ids for beam in range(args.beam_width)
            )
        print("The answers are in", args.output_tokens_csv_file)


if __name__ == "__main__":
    main()
