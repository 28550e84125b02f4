"""How a turn reaches a server: OpenAI's HTTP, or Sessile's gRPC."""
