"""Copies of what the data folder keeps, made beside the running server, and the way back to them."""
