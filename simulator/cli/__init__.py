"""`baton simulate` and its commands."""
