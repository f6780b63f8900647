"""The HTTP API: OpenAI's endpoints as an adapter in front of the gRPC service's methods."""
