"""Rows from the user's data to host batches that are ready to place.

Owns: the order of rows, the sources, how an epoch is cut into batches, the background feed.
Not here: devices and shardings (`topology`, `engine`), the loop (`train`).
Invariant: which rows a step sees is a function of (seed, step), never of the number of devices or processes.
"""
