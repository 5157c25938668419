"""Reference answers, written by `python -m helpers build` from the sources in solutions/."""
