"""`baton top`."""
