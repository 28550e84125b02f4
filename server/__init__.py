"""The server: gRPC and HTTP front, text handling, models and the engine."""
