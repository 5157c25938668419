"""Right answers in many styles: each takes the place of the reference's answer of the same name.

`STYLES` of a module holds, by a name, the part of the exercise and the text that is run after the reference's own.
"""
