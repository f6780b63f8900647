"""What is asked: prompts and output lengths, made from a seed."""
