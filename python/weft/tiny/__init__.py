"""Training data of weft-tiny: synthetic records and prompts about them. Of weft, it imports only `errors`."""
