"""The lab's machines as Linux namespaces on this machine: no hypervisor, no systemd, nothing left behind."""
