"""What is measured: endpoints that take a prompt of token ids and stream an answer."""
