"""`make bench`: how fast and how large labctl is here, next to what it is meant to be.

Every figure is measured now, on this host, but the image's own: its manifest holds them since its
build. A figure that misses its target, or can't be measured, is reported and fails nothing.
docs/speed.md says what each figure means.
"""
