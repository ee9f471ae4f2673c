"""One reader a format; each gives the same tables."""
