"""Charts as SVG, drawn without a library: reports need no network and no extra package."""
