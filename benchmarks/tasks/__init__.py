"""Models of the size that people rent GPUs for, as task files of `paceline plan`, `scale` and `tune`."""
