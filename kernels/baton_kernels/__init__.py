"""Pure tensor functions. Imports torch and triton, nothing of ours."""
