"""Reads the user's source without running it: JAX names that are gone, mistakes of hand-written parallel code."""
