"""Text in, text out: another API, which weft.LLM stands for."""

import tensorrt_llm  # ! import tensorrt_llm
from tensorrt_llm import (
    LLM,  # ! elsewhere tensorrt_llm.LLM
    SamplingParams,  # ! elsewhere tensorrt_llm.SamplingParams
)
from tensorrt_llm.llmapi import KvCacheConfig  # ! elsewhere tensorrt_llm.llmapi.KvCacheConfig

llm = LLM("model", kv_cache_config=KvCacheConfig(free_gpu_memory_fraction=0.5))
for output in llm.generate(["Hello"], SamplingParams(max_tokens=3)):
    print(output.outputs[0].text)
print(tensorrt_llm.runtime.ModelRunner)  # ! elsewhere tensorrt_llm.runtime
print(tensorrt_llm.bindings.executor.Request)
