"""Features that few requests use: beam search, logits processors, the flight recorder and the debug tap."""
