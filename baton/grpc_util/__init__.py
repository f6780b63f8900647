"""What all gRPC servers and clients here have in common."""
