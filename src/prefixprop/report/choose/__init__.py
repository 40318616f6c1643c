"""Which runs are compared, and which of them stand for a method."""
