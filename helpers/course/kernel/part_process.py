"""The way into a part's process. The kernel pickles this function, and does not import what it leads to."""

from typing import Any

from helpers.course.kernel.processes import die_with_parent


def part_process(*args: Any) -> None:
    """Import what the fork server has imported, and go on there."""
    die_with_parent()
    from helpers.course.kernel.run_part import run_part

    run_part(*args)
