"""The engine: a child process that owns the scheduler, the radix tree, the block pools and the model."""
