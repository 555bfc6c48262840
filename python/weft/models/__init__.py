"""Models: configs, weights, layers, and the forward to hidden states and logits."""
