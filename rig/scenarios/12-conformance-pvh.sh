# shows: the platform conformance suite in a PVH guest
guest conf type=pvh job=conformance || fail "xl create"
over conf
job_passed conf
