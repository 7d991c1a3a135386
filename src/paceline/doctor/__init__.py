"""What would go wrong, before it does: batch, shapes, keys and memory of a run, and the source of the user's file."""
