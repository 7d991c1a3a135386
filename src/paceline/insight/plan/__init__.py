"""What a run would be on devices that are not here: does it fit, how fast, how efficient, what limits it."""
