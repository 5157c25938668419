"""From a folder of anything to one hand-in for each student and exercise. Nothing is run here."""
