"""The directory in Redis: which workers live, and which prefix blocks each of them owns."""
