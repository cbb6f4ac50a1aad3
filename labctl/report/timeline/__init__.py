"""Write a trial's time line: page, JSON, Perfetto, trace-cmd."""
