"""A `Task` from a model of a library: `nnx`, `linen`, `equinox`. Only that module imports the library."""
