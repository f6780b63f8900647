"""Sending requests at their times, in processes that do nothing else, and noting what comes."""
