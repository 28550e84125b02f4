"""Whether answers stay the same, beside how fast they come."""
