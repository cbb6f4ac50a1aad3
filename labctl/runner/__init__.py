"""Run commands on a machine, native or guest: the only program there that starts any.

It runs inside the machine (in the guest on a virtio-serial port, natively in the image's tree on
an inherited socket), so both sides start, time and count a workload with the very same code.
It is put there as one archive (`base/runner_messages.py`), which Python runs as it is: standard
library only, Python 3.9 or later, nothing of labctl but this package.
"""
