"""From folders, ZIP archives and notebooks to one hand-in for each student and exercise. Nothing is run here."""
