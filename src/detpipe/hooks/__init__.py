"""What happens in the loop besides training: one file a phase."""
