"""Give labctl the inputs of libvirt's own test suite (`make test-peers`)."""
