"""Features that few requests need: beam search, logits processors, the flight recorder and the debug tap."""
