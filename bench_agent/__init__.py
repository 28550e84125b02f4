"""bench-agent: measures servers as agents use them."""
