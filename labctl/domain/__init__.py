"""Manage the guest through libvirt: pin plan, XML, schema, session, live read-back."""
