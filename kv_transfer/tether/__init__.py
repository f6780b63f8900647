"""A connection from each writer to each pool that it writes into, by which a stopped writer is told from a dead one."""
