"""Many requests of one client, streaming or not, with times and statistics."""

import datetime
from argparse import ArgumentParser, Namespace

import numpy as np
from tensorrt_llm.bindings import executor as trtllm  # ! import tensorrt_llm.bindings


def read_tokens(path: str) -> list[list[int]]:
    return [[int(one) for one in row] for row in np.loadtxt(path, delimiter=",")]


def kv_cache(args: Namespace) -> trtllm.KvCacheConfig:
    return trtllm.KvCacheConfig(
        True,
        None,
        None,
        None,
        args.fraction,  # ? refused KvCacheConfig.free_gpu_memory_fraction
        onboard_blocks=True,
        use_uvm=False,
    )


def config_of(args: Namespace) -> trtllm.ExecutorConfig:
    config = trtllm.ExecutorConfig(args.beam_width)  # ? otherwise ExecutorConfig.enable_chunked_context
    config.kv_cache_config = kv_cache(args)
    config.kv_cache_config.enable_block_reuse = True
    config.kv_cache_config.sink_tokens = 4  # ! unknown KvCacheConfig.sink_tokens
    config.batching_type = trtllm.BatchingType.INFLIGHT
    config.normalize_log_probs = True
    config.gpu_weights_percent = args.weights  # ? refused ExecutorConfig.gpu_weights_percent
    config.parallel_config = None
    return config


def enqueue(args: Namespace, executor: trtllm.Executor) -> list[int]:
    requests = []
    sampling = trtllm.SamplingConfig(
        args.beam_width,
        top_k=args.top_k,
        random_seed=3,  # ! older SamplingConfig.random_seed
        min_length=2,  # ! older SamplingConfig.min_length
        top_p_decay=None,
    )
    output = trtllm.OutputConfig(
        return_log_probs=True,
        return_encoder_output=args.encoder,  # ? refused OutputConfig.return_encoder_output
    )
    for tokens in read_tokens(args.input):
        request = trtllm.Request(tokens, args.max_tokens, streaming=args.streaming, sampling_config=sampling)
        request.output_config = output
        request.sampling_config.top_q = 0.5  # ! unknown SamplingConfig.top_q
        requests.append(request)
    print(requests[0].beams)  # ! unknown Request.beams
    return executor.enqueue_requests(requests)


def wait(executor: "trtllm.Executor", ids: list[int], last: trtllm.Response | None = None) -> None:
    timeout = datetime.timedelta(milliseconds=args_of().timeout_ms)
    finished = 0
    while finished < len(ids):
        responses = executor.await_responses(timeout)
        for response in responses:
            if response.has_error():
                raise RuntimeError(response.request_id, response.error_msg)
            finished += response.result.is_final
            print(response.result.finish_reasons[0].name, response.results)  # ! unknown Response.results
            last = response
    print(last.result.sequence_index, last.id)  # ! unknown Response.id
    for per_request in executor.await_responses(ids):
        for response in per_request:
            print(response.result.tokens)  # ! unknown Result.tokens
    executor.await_responses(id=ids[0])
    executor.await_responses(request=ids[0])  # ! unknown Executor.await_responses(request=...)


def args_of() -> Namespace:
    return ArgumentParser().parse_args()


def main() -> None:
    args = args_of()
    with trtllm.Executor(args.model, trtllm.ModelType.DECODER_ONLY, config_of(args)) as executor:
        wait(executor, enqueue(args, executor))
        for stats in executor.get_latest_request_stats():
            print([one.kv_hit_rate for one in stats.request_stats])  # ! unknown RequestStats.kv_hit_rate


if __name__ == "__main__":
    main()
