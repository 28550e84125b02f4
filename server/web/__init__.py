"""HTTP: OpenAI's endpoints, health, metrics and cache reports. Translates only; the session manager decides."""
