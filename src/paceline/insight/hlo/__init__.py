"""Reads what the compiler made of a step: collectives, floating-point operations, memory traffic, in schedule order.

Owns: the parser of XLA's text form (`text`, `shapes`), what instructions cost (`flops`, `convolution`, `custom_calls`,
`traffic`), collectives and what they carry (`collectives`, `groups`, `leaves`), loops, and `program.read_program`.
Not here: how long any of it takes (`insight.model`), compiling (`insight.compiling`).
"""
