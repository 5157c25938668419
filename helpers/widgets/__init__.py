"""Figures to play with, one file each, and `explore`, which turns a drawing function into one.

Figures without controls belong to the room whose data they draw.
"""
