# shows: one script of xenstore messages against Xen's own xenstored and against `pregrant-lab store serve`: equal transcripts
# ci: yes
pregrant-lab store serve --socket /run/ours.sock > /run/ours.log &
within 20 grep -q ready /run/ours.log || fail "our store does not start"
store_transcript /var/run/xenstored/socket /rig/store.script > /run/xen.transcript || fail "Xen's xenstored ends the script"
store_transcript /run/ours.sock /rig/store.script > /run/ours.transcript || fail "ours ends the script"
diff /run/xen.transcript /run/ours.transcript | head -n 60
note "$(grep -c '^[a-z]' /run/xen.transcript) messages, $(grep -c event /run/xen.transcript) events; lines that differ: $(diff /run/xen.transcript /run/ours.transcript | grep -c '^[-+][^-+]')"
cmp -s /run/xen.transcript /run/ours.transcript || fail "the stores answer differently"
killall pregrant-lab
