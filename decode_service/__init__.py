"""The gRPC service around an engine in the decode or the aggregated role."""
