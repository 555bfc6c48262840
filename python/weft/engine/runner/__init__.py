"""One iteration: the step itself, prompts, graphs of it, and what launches them."""
