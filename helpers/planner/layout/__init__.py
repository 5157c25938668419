"""Layouts: ranks in every dimension, their bytes and their seconds."""
