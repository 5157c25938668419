"""From a source to notebooks, pages and tables.

This runs on the author's machine before a release. Learners' notebooks import nothing from here.
"""
