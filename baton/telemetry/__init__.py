"""One trace a request, across all processes."""
