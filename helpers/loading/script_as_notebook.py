"""Let a script start processes wherever a notebook may."""

import sys


def script_as_notebook() -> None:
    """Let this script start processes outside `if __name__ == "__main__":`; in a notebook it changes nothing.

    A spawned process runs the main script once more, up to that line. The labs, which are notebooks first, have no such
    line; so the script's file name is hidden from `multiprocessing`.
    """
    main = sys.modules["__main__"]
    if main.__spec__ is None:  # a plain script; `python -m` names a module, which is not run again
        vars(main).pop("__file__", None)
