"""A program for weft that uses what both have, and weft's own."""

import copy
from datetime import timedelta

import weft.executor as executor_api
from weft import Speculation, package_model_path
from weft.executor import Executor, ExecutorConfig, OutputConfig, Request, Response, SamplingConfig


async def answer(executor: Executor, request: Request) -> list[Response]:
    number = await executor.aenqueue(copy.copy(request))
    return [response async for response in executor.aresponses(number) if response.result.is_final]


config = ExecutorConfig(max_batch_size=3, max_seq_len=512, graphs="split")
config.kv_cache_config.tokens_per_block = 32
config.speculation = Speculation.ngram()
config.guided_decoding_config = executor_api.GuidedDecodingConfig()
with Executor(package_model_path(), config, device="cpu") as executor:
    request = Request([0, 292], 5, sampling_config=SamplingConfig(seed=3, top_k=5), client_id=7)
    request.output_config = OutputConfig(exclude_input_from_output=True, return_perf_metrics=True)
    number = executor.enqueue_request(request)
    for response in executor.await_responses(number, timeout=timedelta(seconds=30)):
        if not response.has_error():
            print(response.result.output_token_ids[0], response.result.finish_reasons[0].name)
            print(response.result.to_dict(), response.client_id)
    print([stats.iter for stats in executor.get_latest_iteration_stats()])
    executor.drop_request(number)
