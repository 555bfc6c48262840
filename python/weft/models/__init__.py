"""Models, their layers and weights: what reads a checkpoint, and computes hidden states and logits."""
