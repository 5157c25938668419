"""For the lab on data loading: image files, a file of tokens, a loader's timelines, and what can be sent to workers.

The data sets that other labs train on are in `core/data.py`.
"""
