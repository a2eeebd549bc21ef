# shows: the same in a PVH guest: grants of another domain are mapped and copied where memory is translated
# thread: one
# unproven: not seen since it is played by one thread of the emulator; by several the guest ends in a triple fault within seconds, also before anything of ours runs
# seconds: 400
export DRIVER=pvh
. /rig/scenarios/70-driver-domain.sh
