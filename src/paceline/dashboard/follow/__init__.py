"""Run folders as they grow: found under a root, read piece by piece, kept small. Reads only, never imports jax."""
