"""Requests with adapters of their own: weights with the first request, a number afterwards."""

import numpy as np
import tensorrt_llm.bindings as tllm  # ! import tensorrt_llm.bindings


def adapter(number: int, folder: str | None):
    if folder is None:
        return tllm.executor.LoraConfig(number)  # ? lacking LoraConfig
    weights, config = np.load(f"{folder}/weights.npy"), np.load(f"{folder}/config.npy")
    return tllm.executor.LoraConfig(number, weights=weights, config=config)  # ? lacking LoraConfig


peft = tllm.executor.PeftCacheConfig(num_put_workers=4, host_cache_size=1 << 30)  # ? lacking PeftCacheConfig
config = tllm.executor.ExecutorConfig(
    enable_chunked_context=False,
    peft_cache_config=peft,  # ? refused ExecutorConfig.peft_cache_config
)
plain = tllm.executor.ExecutorConfig(
    enable_chunked_context=False,
    peft_cache_config=tllm.executor.PeftCacheConfig(),  # ? lacking PeftCacheConfig
)
executor = tllm.executor.Executor("model", tllm.executor.ModelType.DECODER_ONLY, config)
none = None
request = tllm.executor.Request([1], 2, lora_config=none)
request.lora_config = adapter(3, "adapter")  # ? refused Request.lora_config
executor.enqueue_request(request)
executor.enqueue_request(
    tllm.executor.Request([1], 2, lora_config=adapter(3, None))  # ? refused Request.lora_config
)
executor.cancel_request(7)
print(tllm.executor.__version__)  # ? lacking __version__
print(tllm.DataType.HALF)  # ! elsewhere tensorrt_llm.bindings.DataType
