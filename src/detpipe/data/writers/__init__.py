"""Writers of data sets, one module a format."""
