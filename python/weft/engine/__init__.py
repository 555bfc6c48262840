"""The engine: the decode iteration, its graphs, and the loop that schedules and launches it."""
