"""Tests the HTTP server under load, in comparison with `LLM` in the same process, and the validity of its guided
answers."""
