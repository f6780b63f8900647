"""Which requests start now, which wait, and which are refused at once."""
