"""Anthropic's Messages API over HTTP. Translates only; the session manager decides."""
