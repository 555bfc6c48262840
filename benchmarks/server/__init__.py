"""The HTTP server under load, beside `LLM` in the process, and whether its guided answers are valid."""
