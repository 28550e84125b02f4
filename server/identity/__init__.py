"""Who calls, what they may do, and as which tenant."""
