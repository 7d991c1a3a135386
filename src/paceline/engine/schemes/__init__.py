"""The three ways to run one step on K devices. Each module offers ``build(spec) -> jitted step``."""
