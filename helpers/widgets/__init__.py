"""Interactive figures, one file each, and `explore`, which turns a drawing function into one.

Figures without controls belong in the room whose data they draw.
"""
