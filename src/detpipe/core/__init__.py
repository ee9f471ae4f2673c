"""Types, tables, errors and configuration that everything else builds on."""
