"""Training data of weft-tiny: synthetic records and prompts about them. Imports nothing else of weft but errors."""
