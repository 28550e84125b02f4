"""Sessile: a session inference server for LLM agents (sessile.server, sessile.sessions, sessile.prompt_lint, …)."""
