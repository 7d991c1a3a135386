"""What a compiled program and a machine say of a run: memory, communication, time, efficiency.

Owns: everything that is known before a run, and the arithmetic of what is measured after it.
Not here: running steps to measure them (`measure`), the environment (`doctor`).
"""
