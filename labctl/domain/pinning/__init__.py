"""Which CPU each thread of a guest gets."""
