"""Answers that follow a grammar: compiling one, and which tokens it allows next."""
