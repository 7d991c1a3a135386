"""Errors and units that every other layer uses. Never imports jax."""
