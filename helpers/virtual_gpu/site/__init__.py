"""A folder for the path of a new process: Python reads its `sitecustomize` first, and finds the GPUs from the start.

Not a package to import from.
"""
