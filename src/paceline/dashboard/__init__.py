"""The live page of runs and comparisons of them: reads run folders, never writes them, never imports jax."""
