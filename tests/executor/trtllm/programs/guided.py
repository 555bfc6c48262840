"""Answers under a guide. The executor's grammar is made of the tokenizer's own data, as TensorRT-LLM's page says."""

from __future__ import annotations

import argparse

from transformers import AutoTokenizer

import weft.executor as trtllm


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Ask an executor for an answer under a guide")
    parser.add_argument("--model_path", type=str, required=True, help="the directory of a model")
    parser.add_argument("--prompt", type=str, default="JSON: ")
    parser.add_argument("--backend", choices=["XGRAMMAR", "LLGUIDANCE"], default="XGRAMMAR")
    parser.add_argument(
        "--guide_type", choices=["JSON", "JSON_SCHEMA", "REGEX", "EBNF_GRAMMAR"], required=True
    )
    parser.add_argument("--guide", type=str, default=None, help="a schema, a regex or a grammar")
    parser.add_argument("--max_tokens", type=int, default=100)
    return parser.parse_args()


def main() -> None:
    args = arguments()
    tokenizer = AutoTokenizer.from_pretrained(args.model_path)
    vocabulary = sorted(tokenizer.get_vocab().items(), key=lambda entry: entry[1])
    guided_decoding_config = trtllm.GuidedDecodingConfig(
        backend=getattr(trtllm.GuidedDecodingConfig.GuidedDecodingBackend, args.backend),
        encoded_vocab=[token for token, _ in vocabulary],
        tokenizer_str=tokenizer.backend_tokenizer.to_str(),
        stop_token_ids=[tokenizer.eos_token_id],
    )
    config = trtllm.ExecutorConfig(1, guided_decoding_config=guided_decoding_config)
    executor = trtllm.Executor(args.model_path, trtllm.ModelType.DECODER_ONLY, config)

    kind = getattr(trtllm.GuidedDecodingParams.GuideType, args.guide_type)
    params = (
        trtllm.GuidedDecodingParams(kind)
        if args.guide is None
        else trtllm.GuidedDecodingParams(kind, args.guide)
    )
    request = trtllm.Request(
        input_token_ids=tokenizer.encode(args.prompt),
        max_tokens=args.max_tokens,
        output_config=trtllm.OutputConfig(exclude_input_from_output=True),
        end_id=tokenizer.eos_token_id,
        guided_decoding_params=params,
    )
    (response,) = executor.await_responses(executor.enqueue_request(request))
    if response.has_error():
        raise RuntimeError(response.error_msg)
    (tokens,) = response.result.output_token_ids
    print(response.result.finish_reasons[0].name)
    print(tokenizer.decode(tokens))


if __name__ == "__main__":
    main()
