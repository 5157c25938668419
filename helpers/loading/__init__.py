"""For the lab on data loading: image files, timelines of a loader, and objects that can be sent to workers.

The data sets that other labs train on are in `core/data.py`.
"""
