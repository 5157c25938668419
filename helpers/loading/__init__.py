"""What the lab on data loading reads from and draws with: image files, loader timelines, objects that reach workers.

Data sets that other labs train on are in `core/data.py`.
"""
