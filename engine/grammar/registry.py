"""Which grammar backend runs; imports it only when the first grammar is asked for."""

from baton.model_spec import ModelSpec
from engine.grammar.base import GrammarBackend


def make_backend(spec: ModelSpec) -> GrammarBackend:
    """Takes seconds: xgrammar imports transformers. Raises BatonError as `XGrammarBackend` does."""
    from engine.grammar.xgrammar_backend import XGrammarBackend

    return XGrammarBackend(spec)
