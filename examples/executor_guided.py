"""Guided answers: the guide comes with the request, or is registered first and named by the request."""

from __future__ import annotations

import argparse
import json

from weft import Guide, load_tokenizer, package_model_path
from weft.executor import (
    Executor,
    ExecutorConfig,
    GuidedDecodingConfig,
    GuidedDecodingParams,
    GuideType,
    OutputConfig,
    Request,
)

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}
PROMPT = 'Text: Ada is a painter. Age 31.\nSchema: {"name": string, "age": integer}\nJSON: '


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=package_model_path())
    parser.add_argument("--device", default="auto")
    arguments = parser.parse_args()
    tokenizer = load_tokenizer(arguments.model)
    config = ExecutorConfig(guided_decoding_config=GuidedDecodingConfig())
    with Executor(arguments.model, config, device=arguments.device) as executor:
        executor.register_guide("yes or no", Guide.choice(["yes", "no"]))
        for params in (
            GuidedDecodingParams(GuideType.JSON_SCHEMA, json.dumps(PERSON)),
            GuidedDecodingParams(GuideType.REGEX, "[0-9]{4}-[0-9]{2}"),
            GuidedDecodingParams.handle("yes or no"),
        ):
            request = Request(
                tokenizer.encode(PROMPT),
                100,
                guided_decoding_params=params,
                output_config=OutputConfig(exclude_input_from_output=True),
            )
            (response,) = executor.await_responses(executor.enqueue_request(request))
            print(tokenizer.decode(response.result.output_token_ids[0], skip_special_tokens=True))


if __name__ == "__main__":
    main()
