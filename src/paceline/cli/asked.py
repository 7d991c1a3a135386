"""What a command line asks of devices and processes, read before the options are parsed.

Not here: whether the options are right (`cli.options`). Imports no jax.
"""

from __future__ import annotations

from paceline.cli.options import early_value
from paceline.doctor.environment.asked import Asked


def asked_of(arguments: list[str]) -> Asked:
    """What the flags, or else the configuration file, ask of the environment; no number is left to the parser."""

    def number(name: str) -> int | None:
        value = early_value(arguments, name)
        return int(value) if value is not None and value.isdigit() else None

    return Asked(
        number("devices"), number("simulate"), number("processes"), early_value(arguments, "coordinator"),
        number("num_processes"), number("process_index"), number("devices_per_process"),
        early_value(arguments, "compilation_cache"),
    )  # fmt: skip
