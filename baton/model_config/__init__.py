"""Parts of a model's config.json, each read and defaulted in a file of its own; `baton/model_spec.py` composes them."""
