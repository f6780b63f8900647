"""The gRPC service around an engine in the prefill role."""
