"""Moving KV blocks between the pools of two processes."""
