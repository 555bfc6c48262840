"""One request, its answer, and how long it took."""

import argparse

import tensorrt_llm.bindings.executor as trtllm  # ! import tensorrt_llm.bindings.executor

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--model_path", type=str, required=True)
    args = parser.parse_args()

    executor = trtllm.Executor(
        args.model_path,
        trtllm.ModelType.DECODER_ONLY,
        trtllm.ExecutorConfig(  # ? otherwise ExecutorConfig.enable_chunked_context
            1, iter_stats_max_iterations=10
        ),
    )
    if executor.can_enqueue_requests():
        request = trtllm.Request(input_token_ids=[1, 2, 3, 4], max_tokens=10, end_id=-1)
        older = trtllm.Request(
            input_token_ids=[1, 2, 3, 4],
            max_new_tokens=10,  # ! older Request.max_new_tokens
        )
        request_id = executor.enqueue_request(request)
        responses = executor.await_responses(request_id)
        output_tokens = responses[0].result.output_token_ids
        print(output_tokens, responses[0].result.number)  # ! unknown Result.number
        for stats in executor.get_latest_iteration_stats():
            print(stats.iter_latency_ms, stats.kv_cache_stats.used_num_blocks, stats.to_json_str())
