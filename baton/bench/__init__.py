"""Measuring a served model from the client's side, and offline benchmarks of its parts; free of torch."""
