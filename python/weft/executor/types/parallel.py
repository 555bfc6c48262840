"""Several devices and several executors, as TensorRT-LLM has them: one device in this process is what weft serves."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any

from weft.core import Kind
from weft.errors import InputError
from weft.executor.types.fields import ByName, Count, NotNegative, Several, Within
from weft.executor.types.settings import Settings


class CommunicationType(ByName, Enum):
    """How ranks speak to each other."""

    MPI = 0


class CommunicationMode(ByName, Enum):
    """Who takes requests: rank 0, or a process beside the ranks."""

    LEADER = 0
    ORCHESTRATOR = 1


class OrchestratorConfig(Settings):
    """A process beside the ranks, which starts them as `worker_executable_path`."""

    is_orchestrator: bool = True
    worker_executable_path: str = ""
    orch_leader_comm: Any = None
    spawn_processes: bool = True


class ParallelConfig(Settings):
    """Which devices and processes an executor has. One device and this process is what it may say."""

    communication_type: CommunicationType = CommunicationType.MPI
    communication_mode: CommunicationMode = CommunicationMode.LEADER
    device_ids: Several[NotNegative] | None = None
    participant_ids: Several[NotNegative] | None = None
    orchestrator_config: OrchestratorConfig | None = None
    num_nodes: Count | None = None

    def check_alone(self) -> None:
        """Raise `InputError` where more than one device, or another process, is asked for."""
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
    """How keys and values go from one executor to another."""

    max_num_tokens: Count | None = None


class ContextPhaseParams(Settings):
    """What an executor that has read a prompt hands to the one that answers it."""

    first_gen_tokens: Several[int]
    req_id: Annotated[int, Within(Kind.INTEGER, 0, 2**64 - 1, "64 bits, unsigned")]
    opaque_state: bytes | None = None
    draft_tokens: Several[int] | None = None
