# shows: the platform conformance suite in a PVH guest
# seconds: 240
guest conf type=pvh job=conformance || fail "xl create"
over conf 240
job_passed conf
