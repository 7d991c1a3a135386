"""What a run leaves behind and shows: metric keys, events, the run folder, speed, progress. Never imports jax."""
