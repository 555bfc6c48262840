"""A function that forbids tokens, by name for each request and once for all."""

import tensorrt_llm.bindings.executor as trtllm  # ! import tensorrt_llm.bindings.executor
import torch
from tensorrt_llm import logger  # ! elsewhere tensorrt_llm.logger


def forbid(request_id, logits, ids, stream_ptr, client_id):
    with torch.cuda.stream(torch.cuda.ExternalStream(stream_ptr)):
        logits[..., 5] = float("-inf")


def forbid_all(request_ids, logits, ids, stream_ptr, client_ids):
    for one in logits:
        forbid(None, one, None, stream_ptr, None)


logger.set_level("info")
config = trtllm.ExecutorConfig(enable_chunked_context=False)
config.logits_post_processor_map = {"forbid": forbid}  # ! older ExecutorConfig.logits_post_processor_map
config.logits_post_processor_config = trtllm.LogitsPostProcessorConfig(
    processor_map={"forbid": forbid},
    processor_batched=forbid_all,
    replicate=False,  # ? refused LogitsPostProcessorConfig.replicate
)
executor = trtllm.Executor("model", trtllm.ModelType.DECODER_ONLY, config)
request = trtllm.Request(input_token_ids=[1, 2], max_tokens=3, client_id=4)
request.logits_post_processor_name = trtllm.Request.BATCHED_POST_PROCESSOR_NAME
request.logits_processor = forbid  # ! unknown Request.logits_processor
setattr(request, "processor", None)  # noqa: B010 # ! unknown Request.processor
print(getattr(request, "cache_salt_id", None), hasattr(trtllm, "LoraConfig"))
executor.enqueue_request(request)
