"""The settings that train fastest on the devices at hand, found by short measured runs."""
