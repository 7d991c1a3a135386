"""What the user brings: a loss, its metrics, its model."""
