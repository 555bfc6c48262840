"""Every test function of TensorRT-LLM's binding tests is ported here, under its own name."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PORTED = {
    "cache_events": "kv_event_stream kv_event_stream_timeout",
    "comparison": "token_comparison finish_reason",
    "configs": """
        dynamic_batch_config scheduler_config kv_cache_config kv_cache_retention_config executor_config parallel_config
        peft_cache_config getters_return_references executor_version runtime_defaults
    """,
    "decoding_configs": """
        sampling_config external_draft_tokens_config speculative_decoding_config lookahead_decoding_config eagle_config
        decoding_mode logits_post_processor_config guided_decoding_params guided_decoding_config
    """,
    "generation": """
        executor_valid_ctor executor_from_memory executor_invalid_ctor shutdown embedding_bias single_request
        single_request_lora multi_request multi_request_with_ids get_num_responses_ready gpt_executor_timed_out
        single_request_invalid_inputs wakeup
    """,
    "metrics": "request_perf_metrics request_perf_metrics_kv_cache request_perf_metrics_draft",
    "pickles": """
        output_config_pickle result_pickle dynamic_batch_config_pickle speculative_decoding_config_pickle
        lookahead_decoding_config_pickle eagle_config_pickle parallel_config_pickle request_perf_metrics_pickle
        scheduler_config_pickle kv_cache_config_pickle kv_cache_retention_config_pickle peft_cache_config_pickle
        decoding_config_pickle debug_config_pickle logits_post_processor_config_pickle guided_decoding_params_pickle
        guided_decoding_config_pickle cache_transceiver_config_pickle executor_config_pickle request_pickle
    """,
    "processors": "logits_post_processor logits_post_processor_batched",
    "requests": """
        output_config prompt_tuning_config multimodal_embedding multimodal_input mrope_config lora_config request
        spec_dec_fast_logits_info return_full_tokens allotted_time_ms
    """,
    "responses": "result response iteration_stats request_stats request_stats_per_iteration",
}
"""The names, without `test_`, by the file that has them: `test_port_*.py`. Those that upstream skips are there, too.
One stands for two functions there, of which Python keeps the second: `test_speculative_decoding_config`."""

NUM_UPSTREAM = 76
"""Names of test functions of tests/unittest/bindings/test_executor_bindings.py, TensorRT-LLM 008b2b8d23af95e4e19f."""


def test_every_name_is_there_once() -> None:
    names = [name for words in PORTED.values() for name in words.split()]
    assert len(names) == len(set(names)) == NUM_UPSTREAM


@pytest.mark.parametrize("file", PORTED)
def test_the_file_has_them_and_no_others(file: str) -> None:
    tree = ast.parse((Path(__file__).parent / f"test_port_{file}.py").read_text())
    found = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    assert sorted(name for name in found if name.startswith("test_")) == sorted(
        f"test_{name}" for name in PORTED[file].split()
    )


def test_no_file_is_left_out() -> None:
    files = {path.stem.removeprefix("test_port_") for path in Path(__file__).parent.glob("test_port_*.py")}
    assert files - {"list", "programs", "signatures"} == PORTED.keys()
