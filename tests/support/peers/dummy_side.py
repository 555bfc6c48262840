"""An engine without a model for the comparison: `python dummy_side.py`, with the folder benchmarks on the path. It
answers each prompt with its schema's `const`. The drafter in the config selects a fault: fail, exit, sleep or print."""

from __future__ import annotations

import json
import os
import time

from peers.protocol import Answer, Answers, Config, Prompt, Request, serve


class Dummy:
    """Its answers to prompts without a schema give the number of prompts that were prepared before."""

    def __init__(self, config: Config) -> None:
        if config.drafter == "can't open":
            raise ValueError("no such drafter")
        self.versions = {"dummy": "1"}
        self._how = config.drafter
        self._prepared = 0

    def prepare(self, prompts: list[Prompt]) -> None:
        self._prepared += len(prompts)

    def answer(self, request: Request) -> Answers:
        match self._how:
            case "fails":
                raise RuntimeError("this fails")
            case "ends":
                os._exit(3)
            case "sleeps":
                time.sleep(60)
            case "prints":
                print("not for the runner", flush=True)
                os.write(1, b"nor this\n")
        return Answers(0.5, [self._answer(prompt, request) for prompt in request.prompts])

    def _answer(self, prompt: Prompt, request: Request) -> Answer:
        if prompt.schema is None:
            return Answer(request.max_tokens, f"{self._prepared} prepared", 0.25, is_whole=False)
        return Answer(len(prompt.ids), json.dumps(prompt.schema.get("const")), 0.25, is_whole=True)


if __name__ == "__main__":
    serve(Dummy)
