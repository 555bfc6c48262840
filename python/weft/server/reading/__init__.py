"""Reads a body into a `Job`: prompts, guides, tools. Nothing begins here."""
