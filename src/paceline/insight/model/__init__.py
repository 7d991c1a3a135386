"""How long a step takes on K devices, from what it computes and what it sends."""
