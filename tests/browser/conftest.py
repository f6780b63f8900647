"""Pages of the gateway and reports, in a real browser."""

from tests.fakes.browser import foreign_page, page, screenshot

__all__ = ["foreign_page", "page", "screenshot"]
