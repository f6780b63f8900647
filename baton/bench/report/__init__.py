"""Reports as single HTML files."""
