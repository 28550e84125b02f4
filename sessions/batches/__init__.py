"""The offline lane: files of requests, run as batches when nothing else wants the engine, durable line by line."""
