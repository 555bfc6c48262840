"""Converts a request body to a `Job`: its prompts, guides and tools. The job is not submitted to the engine here."""
