"""Who may call the gateway, and how much."""
