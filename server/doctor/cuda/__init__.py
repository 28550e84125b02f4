"""The GPU's self-test: each op against its reference, against what the GPU can do at best, and a whole decoder."""
