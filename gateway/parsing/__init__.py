"""Answers of chats taken apart as they are streamed: reasoning, content, tool calls."""
