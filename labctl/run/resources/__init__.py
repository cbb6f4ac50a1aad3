"""Provide resources of the host to guests and trials for a while: huge pages, disks."""
