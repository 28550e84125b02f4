"""Models: their configuration, their weights, and the forward pass over a ragged batch with a block table."""
