"""`make test-kvm` and `make sweep-kvm`: on a machine where no kernel boots under KVM, one where it
does.

QEMU emulates a whole machine with AMD's SVM and nested paging. In it Debian's stock kernel has a
KVM whose VM exits are real to it. Tests, sweeps and other commands run there on the checkout as it
is now.
"""
