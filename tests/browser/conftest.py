"""Pages of the gateway and reports, in a real browser."""

from tests.fakes.browser import page, screenshot

__all__ = ["page", "screenshot"]
