"""What people and other programs read: gradebook, pages, exports. Nothing is decided here."""
