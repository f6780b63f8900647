"""Upper bounds of the histograms that an engine core keeps as plain counts; its service turns them into metrics."""

STEP_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
STEP_TOKENS = (1, 4, 16, 64, 256, 512, 1024, 2048, 4096, 8192, 16384)
STEP_SEQUENCES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
