"""The job that orders: how it takes over, decides a batch, and looks after its groups."""
