"""One iteration: the step, its graphs, prompts, and the runner that launches them."""
