"""Read what a trace's events say about who ran, waited and woke, by one clock."""
