"""Reads a request body into a `Job`: its prompts, guides and tools. Nothing is submitted to the engine here."""
