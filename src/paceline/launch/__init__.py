"""Several processes on this machine, watched by one that does no work: start, watch, stop, restart. No jax."""
