"""Several requests at once; each answer is printed when it ends. The default model is weft-tiny."""

from __future__ import annotations

import argparse

from weft import load_tokenizer, package_model_path
from weft.executor import Executor, ExecutorConfig, OutputConfig, Request, SamplingConfig

PROMPTS = ["Text: Ada is a painter.", "Text: Bob lives in Rome.", "Text: Checked twice. No rain."]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=package_model_path())
    parser.add_argument("--device", default="auto")
    arguments = parser.parse_args()
    tokenizer = load_tokenizer(arguments.model)
    with Executor(arguments.model, ExecutorConfig(max_batch_size=4), device=arguments.device) as executor:
        requests = [
            Request(
                tokenizer.encode(prompt),
                24,
                end_id=tokenizer.eos_token_id,
                sampling_config=SamplingConfig(top_k=40, top_p=0.95, temperature=0.8, seed=1),
                output_config=OutputConfig(exclude_input_from_output=True),
                client_id=number,
            )
            for number, prompt in enumerate(PROMPTS)
        ]
        left = set(executor.enqueue_requests(requests))
        while left:
            for response in executor.await_responses():
                left.discard(response.request_id)
                (tokens,) = response.result.output_token_ids
                reason = response.result.finish_reasons[0].name
                print(
                    f"{response.client_id} {reason}: {tokenizer.decode(tokens, skip_special_tokens=True)!r}"
                )


if __name__ == "__main__":
    main()
