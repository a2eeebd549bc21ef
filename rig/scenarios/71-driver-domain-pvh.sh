# shows: `pregrant back`, or the module, in a PVH guest as driver domain: grants of another domain are mapped and copied where memory is translated
# icount: yes
# back: any
# seconds: 400
export DRIVER=pvh
. /rig/scenarios/70-driver-domain.sh
