"""Bodies read into jobs: prompts, guides, tools; nothing of them has begun."""
