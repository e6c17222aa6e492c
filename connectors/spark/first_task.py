"""The task of the first Python worker. It imports nothing, as executors have little (`packing`)."""


def do_nothing(_: int) -> None:
    """Do nothing: the import of this module on an executor proves that abcast's modules were shipped."""
