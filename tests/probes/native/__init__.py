"""A real shared library in the driver's place, for tests of more than one process."""
