"""What runs things to measure them: scaling (`measure.scale`), settings (`measure.tune`).

Not here: what reads programs and predicts (`insight`).
"""
