# shows: the same in a PVH guest: grants of another domain are mapped and copied where memory is translated
# icount: yes
# seconds: 400
export DRIVER=pvh
. /rig/scenarios/70-driver-domain.sh
