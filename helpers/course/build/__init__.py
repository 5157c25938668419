"""From a source to notebooks, pages and tables.

What runs on the author's machine before anything is handed out. Learners' notebooks import nothing from here.
"""
