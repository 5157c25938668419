"""Feedback for Moodle: Assignment, View all submissions, Upload multiple feedback files in a zip."""

import io
import zipfile
from collections.abc import Mapping

_SUBMISSION = "_assignsubmission_"  # how Moodle calls folders in its download: NAME_NUMBER_assignsubmission_file_


def moodle_feedback(pages: Mapping[str, str]) -> bytes | None:
    """Return a ZIP file with the page of each student whose folder came from Moodle; None if none did.

    Args:
        pages: by the student's folder. Moodle tells by its name whose file it is.
    """
    theirs = {folder: page for folder, page in sorted(pages.items()) if _SUBMISSION in folder}
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for folder, page in theirs.items():
            member = zipfile.ZipInfo(f"{folder}/feedback.html")  # dated 1980: the same pages give the same file
            archive.writestr(member, page.encode(errors="backslashreplace"), zipfile.ZIP_DEFLATED)
    return file.getvalue() if theirs else None
