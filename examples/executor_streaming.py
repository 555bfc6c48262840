"""One streamed request, and the time of its iterations."""

from __future__ import annotations

import argparse

from weft import Speculation, load_tokenizer, package_model_path
from weft.executor import Executor, ExecutorConfig, Request


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=package_model_path())
    parser.add_argument("--device", default="auto")
    arguments = parser.parse_args()
    tokenizer = load_tokenizer(arguments.model)
    config = ExecutorConfig(speculation=Speculation.ngram())
    with Executor(arguments.model, config, device=arguments.device) as executor:
        prompt = tokenizer.encode("Text: Ada is a painter. Age 31.")
        number = executor.enqueue_request(Request(prompt, 40, streaming=True, end_id=tokenizer.eos_token_id))
        is_final = False
        while not is_final:
            for response in executor.await_responses(number):
                result = response.result  # raises, with the message, if the request failed
                print(
                    tokenizer.decode(result.output_token_ids[0], skip_special_tokens=True),
                    end="|",
                    flush=True,
                )
                is_final = result.is_final
        print(result.finish_reasons[0].name)
        stats = executor.get_latest_iteration_stats()
        print(f"{len(stats)} iterations, {sum(one.iter_latency_ms for one in stats):.1f} ms")


if __name__ == "__main__":
    main()
