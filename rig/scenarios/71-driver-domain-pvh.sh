# shows: the same in a PVH guest: grants of another domain are mapped and copied where memory is translated
# unproven: the guest ends in a triple fault within seconds, also before anything of ours runs: QEMU emulates SVM, and not all of it
# seconds: 400
export DRIVER=pvh
. /rig/scenarios/70-driver-domain.sh
