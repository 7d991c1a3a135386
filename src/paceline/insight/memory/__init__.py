"""Memory of a step: what the compiler says, what arithmetic says, what to do when it is too much."""
