"""Streams in an event loop: each client follows its own request. A client that leaves early cancels its request."""

from __future__ import annotations

import argparse
import asyncio
from contextlib import aclosing

from weft import load_tokenizer, package_model_path
from weft.executor import Executor, ExecutorConfig, Request

PROMPTS = ["Text: Ada is a painter.", "Text: Bob lives in Rome.", "Text: Checked twice. No rain."]


async def client(executor: Executor, prompt: list[int], patience: int) -> list[int]:
    """The tokens of one stream; the client leaves after `patience` tokens."""
    number = await executor.aenqueue(Request(prompt, 32, streaming=True, end_id=-1))
    tokens: list[int] = []
    async with aclosing(executor.aresponses(number)) as responses:
        async for response in responses:
            tokens += response.result.output_token_ids[0]
            if len(tokens) >= patience:
                break
    return tokens


async def serve(executor: Executor, model: str) -> None:
    tokenizer = load_tokenizer(model)
    clients = [client(executor, tokenizer.encode(prompt), 8 * (i + 1)) for i, prompt in enumerate(PROMPTS)]
    for tokens in await asyncio.gather(*clients):
        print(len(tokens), repr(tokenizer.decode(tokens)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=package_model_path())
    parser.add_argument("--device", default="auto")
    arguments = parser.parse_args()
    with Executor(arguments.model, ExecutorConfig(), device=arguments.device) as executor:
        asyncio.run(serve(executor, arguments.model))


if __name__ == "__main__":
    main()
