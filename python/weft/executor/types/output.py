"""What a request wants to be given beside its tokens: `OutputConfig`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from weft.core import MAX_LOGPROBS, Kind
from weft.errors import InputError
from weft.executor.types.checked import Checked
from weft.executor.types.fields import flag, instances, number, parse_text, refused, required


@dataclass(eq=False)
class AdditionalModelOutput(Checked):
    """A tensor that the model marks by `name`, for every token of the answer; `gather_context`: of the prompt too."""

    name: str = field(metadata=required(parse_text))
    gather_context: bool = flag(False)


@dataclass(eq=False)
class OutputConfig(Checked):
    """What a request's results hold beside the tokens.

    `return_log_probs`: the logarithm of each token's probability, as the model has it (before penalties, masks and
    temperature); `top_log_probs`, 0 to 20, asks for those of as many likeliest tokens as well. `return_context_logits`
    and `return_generation_logits`: the model's logits at each position of the prompt and of the answer (the latter need
    `ExecutorConfig.gather_generation_logits`). `exclude_input_from_output` leaves the prompt out of what is not
    streamed. `return_perf_metrics` fills `Result.request_perf_metrics`. `additional_model_outputs` are some of those
    that `ExecutorConfig.additional_model_outputs` names.
    """

    return_log_probs: bool = flag(False)
    return_context_logits: bool = flag(False)
    return_generation_logits: bool = flag(False)
    exclude_input_from_output: bool = flag(False)
    return_encoder_output: bool = refused("models have no encoder; leave it False", default=False)
    return_perf_metrics: bool = flag(False)
    additional_model_outputs: Sequence[AdditionalModelOutput] = instances(AdditionalModelOutput)
    top_log_probs: int = number(Kind.INTEGER, 0, MAX_LOGPROBS, f"0 to {MAX_LOGPROBS}", default=0)

    def check(self) -> None:
        super().check()
        if self.top_log_probs and not self.return_log_probs:
            raise InputError("top_log_probs comes with log-probabilities; give return_log_probs=True as well")
        names = [output.name for output in self.additional_model_outputs]
        if len(set(names)) < len(names):
            raise InputError(f"additional_model_outputs names one twice: {', '.join(names)}")
