"""What the prefill and the decode service have in common."""
