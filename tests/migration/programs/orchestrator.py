"""A model over several ranks, whose workers the orchestrator starts."""
# ruff: noqa: C408, F403, F405

from tensorrt_llm.bindings.executor import *  # ! import tensorrt_llm.bindings.executor

orchestrator = OrchestratorConfig(True, "/opt/worker")  # ? lacking OrchestratorConfig
parallel = ParallelConfig(  # ? lacking ParallelConfig
    CommunicationType.MPI,  # ? lacking CommunicationType
    CommunicationMode.ORCHESTRATOR,  # ? refused CommunicationMode.ORCHESTRATOR
    orchestrator_config=orchestrator,  # ? refused ParallelConfig.orchestrator_config
)
alone = ParallelConfig(device_ids=[0], num_nodes=1, participant_ids=None)
many = ParallelConfig(device_ids=[0, 1])  # ? refused ParallelConfig.device_ids
options = dict(max_beam_width=1, enable_chunked_context=False)
options["parallel_config"] = parallel  # ? refused ExecutorConfig.parallel_config
options["max_batch"] = 3  # ! unknown ExecutorConfig.max_batch
config = ExecutorConfig(**options)
if orchestrator.is_orchestrator:
    executor = Executor(
        model_path="model",  # ? lacking Executor.model_path
        model_type=ModelType.DECODER_ONLY,  # ? lacking Executor.model_type
        executor_config=config,
    )
else:
    executor = Executor(
        "encoder",  # ! lacking Executor.encoder_model_path
        "decoder",  # ! lacking Executor.decoder_model_path
        ModelType.DECODER_ONLY,
        config,
    )
events = executor.get_kv_cache_event_manager()  # ? lacking Executor.get_kv_cache_event_manager
for event in events.get_latest_events(5):
    print(event.event_id, event.data)
