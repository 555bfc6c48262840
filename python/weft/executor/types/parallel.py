"""TensorRT-LLM's settings for several devices and executors. A weft executor runs on one device, in this process."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any

from weft.core import ValueKind
from weft.errors import InputError
from weft.executor.types.fields import ByName, Count, NotNegative, Several, Within
from weft.executor.types.settings import Settings


class CommunicationType(ByName, Enum):
    """The communication between ranks."""

    MPI = 0


class CommunicationMode(ByName, Enum):
    """The process that receives requests: rank 0, or a separate orchestrator."""

    LEADER = 0
    ORCHESTRATOR = 1


class OrchestratorConfig(Settings):
    """A separate process that starts the ranks as `worker_executable_path`."""

    is_orchestrator: bool = True
    worker_executable_path: str = ""
    orch_leader_comm: Any = None
    spawn_processes: bool = True


class ParallelConfig(Settings):
    """The devices and processes of an executor. Only one device and this process are allowed."""

    communication_type: CommunicationType = CommunicationType.MPI
    communication_mode: CommunicationMode = CommunicationMode.LEADER
    device_ids: Several[NotNegative] | None = None
    participant_ids: Several[NotNegative] | None = None
    orchestrator_config: OrchestratorConfig | None = None
    num_nodes: Count | None = None

    def check_alone(self) -> None:
        """Raise `InputError` for more than one device, or for another process."""
        many = [
            name
            for name, is_more in {
                "communication_mode": self.communication_mode is CommunicationMode.ORCHESTRATOR,
                "device_ids": len(self.device_ids or ()) > 1 or self.device_ids not in (None, [], [0]),
                "participant_ids": len(self.participant_ids or ()) > 1,
                "orchestrator_config": self.orchestrator_config is not None,
                "num_nodes": (self.num_nodes or 1) > 1,
            }.items()
            if is_more
        ]
        if many:
            raise InputError(
                f"ParallelConfig.{many[0]} is not supported: an executor runs on one device, in this process; leave it "
                "out"
            )


class CacheTransceiverConfig(Settings):
    """The transfer of KV caches from one executor to another."""

    max_num_tokens: Count | None = None


class ContextPhaseParams(Settings):
    """The state that a prefill executor passes to a decode executor."""

    first_gen_tokens: Several[int]
    req_id: Annotated[int, Within(ValueKind.INTEGER, 0, 2**64 - 1, "64 bits, unsigned")]
    opaque_state: bytes | None = None
    draft_tokens: Several[int] | None = None
