"""The three ways to run one step on K devices.

Each module offers ``build(spec, state) -> jitted step``; of the state only shapes and dtypes are read.
"""
