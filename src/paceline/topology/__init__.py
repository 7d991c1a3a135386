"""Which devices a run uses and the mesh over them."""
