"""`baton bench …`: measuring."""
