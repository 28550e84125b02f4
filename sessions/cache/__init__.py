"""The prefix cache: which tokens' KV lies in which block of which tier."""
