"""The engine: one decode iteration, its graphs, and the loop that feeds it."""
