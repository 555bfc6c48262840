"""`OutputConfig`: the outputs of a request besides its tokens."""

from __future__ import annotations

from typing import Annotated

from weft.core import MAX_LOGPROBS, ValueKind
from weft.errors import InputError
from weft.executor.types.fields import Several, Text, Within
from weft.executor.types.settings import Settings


class AdditionalModelOutput(Settings):
    """An output that the model marks by `name`. It is returned for every token of the answer and, with
    `gather_context`, of the prompt."""

    name: Text
    gather_context: bool = False


class OutputConfig(Settings):
    """Selects the outputs of a request besides its tokens.

    - `return_log_probs`: the log-probability of each token after biases, penalties, guide, `temperature` and `min_p`
      (see `ExecutorConfig.normalize_log_probs`). `top_log_probs`, weft's extension, 0 to 20, adds as many of the most
      likely tokens of the same distribution.
    - `return_context_logits` and `return_generation_logits`: the model's logits at each position of the prompt and of
      the answer. The latter need `ExecutorConfig.gather_generation_logits`.
    - `exclude_input_from_output` leaves the prompt out of results that are not streamed.
    - `return_perf_metrics` fills `Result.request_perf_metrics`.
    - `additional_model_outputs`: any of the outputs that `ExecutorConfig.additional_model_outputs` names.
    """

    return_log_probs: bool = False
    return_context_logits: bool = False
    return_generation_logits: bool = False
    exclude_input_from_output: bool = False
    return_encoder_output: bool = False
    return_perf_metrics: bool = False
    additional_model_outputs: Several[AdditionalModelOutput] | None = None
    top_log_probs: Annotated[int, Within(ValueKind.INTEGER, 0, MAX_LOGPROBS, f"0 to {MAX_LOGPROBS}")] = 0

    def check(self) -> None:
        if self.top_log_probs and not self.return_log_probs:
            raise InputError("top_log_probs comes with log-probabilities; give return_log_probs=True as well")
        names = [output.name for output in self.additional_model_outputs or ()]
        if len(set(names)) < len(names):
            raise InputError(f"additional_model_outputs names one twice: {', '.join(names)}")
