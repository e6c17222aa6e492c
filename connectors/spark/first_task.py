"""What the first Python worker is given to do. It imports nothing, as executors have little (`packing`)."""


def do_nothing(_: int) -> None:
    """If this module can be imported there, ours were shipped."""
