"""For authors and instructors: building notebooks and grading submissions."""
