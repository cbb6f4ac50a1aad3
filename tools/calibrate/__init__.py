"""Simulate how often labctl's judgement is right: simulated sweeps, whose truth is known, through
`judge`.

`make calibrate` prints coverage, rates of false verdicts and power as Markdown; docs/calibration.md
holds what it printed.
"""
