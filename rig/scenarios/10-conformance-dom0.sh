# shows: the platform conformance suite in dom0
# ci: yes
conformance
