"""One training step, compiled for K devices by any of three schemes, with one result."""
