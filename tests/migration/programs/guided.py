"""A guide for each request, and the vocabulary read from the tokenizer."""

import json

import tensorrt_llm.bindings.executor as trtllm  # ! import tensorrt_llm.bindings.executor
from transformers import AutoTokenizer


class Answers:
    """An executor, and what it is asked."""

    def __init__(self, engine: str, tokenizer: str) -> None:
        read = AutoTokenizer.from_pretrained(tokenizer)
        self.config = trtllm.ExecutorConfig(  # ? otherwise ExecutorConfig.enable_chunked_context
            1,
            guided_decoding_config=trtllm.GuidedDecodingConfig(
                trtllm.GuidedDecodingConfig.GuidedDecodingBackend.XGRAMMAR,
                encoded_vocab=sorted(read.get_vocab()),  # ? refused GuidedDecodingConfig.encoded_vocab
                tokenizer_str=read.backend_tokenizer.to_str(),  # ? refused GuidedDecodingConfig.tokenizer_str
                stop_token_ids=[read.eos_token_id],  # ? refused GuidedDecodingConfig.stop_token_ids
            ),
        )
        self.executor = trtllm.Executor(engine, trtllm.ModelType.DECODER_ONLY, self.config)
        self.config.beams = 2  # ! unknown ExecutorConfig.beams

    def guides(self, schema: dict):
        kinds = trtllm.GuidedDecodingParams.GuideType
        yield trtllm.GuidedDecodingParams(kinds.JSON)
        yield trtllm.GuidedDecodingParams(kinds.JSON_SCHEMA, guide=json.dumps(schema))
        yield trtllm.GuidedDecodingParams(kinds.XML, "a")  # ! unknown GuideType.XML

    def ask(self, tokens: list[int], guide: trtllm.GuidedDecodingParams) -> list[int]:
        request = trtllm.Request(input_token_ids=tokens, max_tokens=5, guided_decoding_params=guide)
        number = self.executor.enqueue_request(request)
        response = self.executor.await_responses(number)[0]
        return response.result.output_token_ids[0] + response.result.text  # ! unknown Result.text
