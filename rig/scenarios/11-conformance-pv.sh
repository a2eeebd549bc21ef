# shows: the platform conformance suite in a PV guest
# ci: yes
guest conf job=conformance || fail "xl create"
over conf
job_passed conf
