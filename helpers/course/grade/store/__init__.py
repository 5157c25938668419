"""Results that outlive the run, and the conditions under which they were reached."""
