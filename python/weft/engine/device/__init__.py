"""Device memory indexed by slot, and an iteration's results on the host."""
