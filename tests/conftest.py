"""What all tests share."""

from __future__ import annotations

from hypothesis import settings

# The same examples each time, and no clock: a failure is the change's doing. To search further:
# pytest --hypothesis-profile=search
settings.register_profile("fixed", derandomize=True, deadline=None, database=None)
settings.register_profile("search", deadline=None, max_examples=2000)
settings.load_profile("fixed")
