"""What the planner knows by name: models and GPUs.

Figures from data sheets and published configs, each with its source. No arithmetic.
"""
