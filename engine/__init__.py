"""One model on one worker. Knows token ids only: no gRPC, no Redis, no text."""
