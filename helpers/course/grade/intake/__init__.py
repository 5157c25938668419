"""From folders, ZIP archives and notebooks to one submission for each student and exercise. Nothing is run here."""
