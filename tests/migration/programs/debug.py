"""Tensors of the engine's inside, after each iteration."""

from tensorrt_llm.bindings.executor import (  # ! import tensorrt_llm.bindings.executor
    DebugConfig,  # ? lacking DebugConfig
    Executor,
    ExecutorConfig,
    ModelType,
    Request,
)

names = {"debug_tensor_names": ["logits"], "debug_tensors_max_iterations": 2}
config = ExecutorConfig(  # ? otherwise ExecutorConfig.enable_chunked_context
    max_beam_width=1,
    debug_config=DebugConfig(**names),  # ? refused ExecutorConfig.debug_config
)
executor = Executor("engine", ModelType.ENCODER_DECODER, config)  # ! refused ModelType.ENCODER_DECODER
request_id = executor.enqueue_request(Request([1, 2], 3))
executor.await_responses(request_id)
for tensors in executor.get_latest_debug_tensors():  # ? lacking Executor.get_latest_debug_tensors
    print(tensors.iter, tensors.debug_tensors["logits"])
executor.shut_down()  # ! unknown Executor.shut_down
