"""For authors and instructors: building notebooks and grading submissions."""

import sys

# nbformat imports jsonschema, which compiles 38 grammars of web addresses where this package is installed. That takes
# three seconds, and no notebook is checked for web addresses.
sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]
