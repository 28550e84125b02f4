"""OpenAI's files and batches over HTTP. Translates only; ``sessions/batches`` decides."""
