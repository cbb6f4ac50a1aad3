"""Provide what guests and trials take of the host for a while: huge pages, disks."""
