"""Write reports as text for a terminal."""
