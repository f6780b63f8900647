"""Routing without waiting: candidates and prefix hits in, ranked choices out. No asyncio, gRPC or Redis."""
