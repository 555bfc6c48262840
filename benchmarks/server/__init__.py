"""Tests the HTTP server under load, compared with `LLM` in the process, and the validity of its guided answers."""
