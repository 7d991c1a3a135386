"""How a task scales on the devices at hand: throughput, efficiency, and where the rest of the time goes."""
