"""Figures to play with: one file each."""
