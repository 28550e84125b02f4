"""The commands of bench-agent, one a file."""
