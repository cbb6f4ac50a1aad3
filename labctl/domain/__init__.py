"""The guest as libvirt sees it: pin plan, XML, schema, session, live read-back."""
