"""Combine the events of a trial's traces by one clock: who ran, waited and woke."""
