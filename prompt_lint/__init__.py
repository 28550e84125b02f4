"""prompt-lint: finds what breaks the prefix cache in recorded traffic, in code and in chat templates."""
