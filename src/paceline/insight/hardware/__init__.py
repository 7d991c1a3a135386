"""Devices, links and networks with their published rates, machines made of them, and targets for the compiler."""
