# Does what dom0 asks: runs the line in data/do; status to data/did, the last line of output to data/answer.

# addresses N [DEVICE]: 10.9.0.N and fd09::N.
addresses() {
	_dev=${2:-eth0}
	ip link set "$_dev" up && ip addr add "10.9.0.$1/24" dev "$_dev" && ip -6 addr add "fd09::$1/64" dev "$_dev" nodad
}

while :; do
	order=$(xenstore-read data/do 2>/dev/null)
	if [ -z "$order" ]; then
		sleep 0.1
		continue
	fi
	xenstore-write data/do ""
	[ "$order" = end ] && { xenstore-write data/did 0; break; }
	( eval "$order" ) > /tmp/output 2>&1
	status=$?
	cat /tmp/output
	xenstore-write data/answer "$(tail -n 1 /tmp/output)"
	xenstore-write data/did $status
done
