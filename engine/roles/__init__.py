"""What an engine core does with commands, peers and steps, by role."""
