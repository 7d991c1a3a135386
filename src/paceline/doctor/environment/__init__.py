"""What is around a run: devices, versions, flags, variables, other processes, network, limits, speed of the parts."""
