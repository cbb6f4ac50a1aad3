"""`make test-kvm`: the tests that need KVM, on a machine where no kernel boots under KVM.

QEMU emulates a whole machine with AMD's SVM and nested paging. In it Debian's stock kernel has a
KVM whose VM exits are real to it, and the tests run there on the checkout as it is now.
"""
