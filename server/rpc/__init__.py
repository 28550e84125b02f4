"""The gRPC front: translates, and nothing else."""
