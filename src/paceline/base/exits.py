"""Exit codes of the program beside those that errors carry."""

INTERRUPTED = 130
"""Ctrl-C: 128 + SIGINT, as shells expect."""
