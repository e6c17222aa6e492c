"""The parts of a simulated world that all simulators share."""
