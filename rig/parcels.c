/*
 * Parcels: frames whose checksum is blank inside a tag or a tunnel, as the kernel of a nested guest
 * hands them on: the header of a packet socket (PACKET_VNET_HDR) says where the sum begins and
 * where it goes. At the other end each has to be what it was, with the sum written, or still blank
 * and said to be so at its own place.
 *
 *   parcels send DEVICE TO COUNT [KIND...]     so many of each kind, with TCP and with UDP, to an address
 *   parcels take DEVICE COUNT [KIND...]        so many of each; what did not come whole is named
 *   parcels vxlan NAME ID LOCAL REMOTE DEVICE  an interface, which `ip` of busybox has not
 *   parcels listen PORT BYTES COUNT            a TCP connection's bytes and so many datagrams, by IPv6
 *   parcels talk ADDRESS PORT BYTES COUNT      sends those, each packet with two extension headers
 *
 *   a parcel | to, from | tags, tunnel | IP | TCP, UDP | bytes by rule | MARK, which one, MARK
 *
 * `take` makes each parcel once more by its last eight bytes and compares all of it. Licence: as
 * the project's, MIT OR Apache-2.0.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_link.h>
#include <linux/if_packet.h>
#include <linux/rtnetlink.h>
#include <linux/virtio_net.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define MARK 0xa7
#define MOST 2048
#define COUNT_MAX 1000
#define ETHERNET 0x0003 /* ETH_P_ALL */
enum { L4S = 2, TRAILER = 8, SMALLEST = 32, LARGEST = 1301, SAID = 700 };
/* Silence after which no more is awaited; and before the first, whose sender may start late. */
#define PATIENCE_MS 8000
#define FIRST_MS 60000
/* Between two frames: no ring and no socket is to be full. */
#define PAUSE_US 4000

/* What is around the IP packet whose sum is blank. */
static const char *const kinds[] = {
	"ipv4",     "ipv4-options", "ipv6",    "ipv6-extensions", "802.1q", "802.1ad", "qinq",  "qinq-ipv6", "mpls",
	"pppoe",    "icmp",         "vxlan",   "vxlan-sum",       "gre",    "ipip",    "6in4",  "qinq-vxlan", "fragment",
	"fragment-ipv6",
};
enum { KINDS = sizeof(kinds) / sizeof(*kinds) };

struct parcel {
	uint8_t bytes[MOST];
	int len;
	/* Where the sum begins and where it goes, and what of the packet's head is added to it. */
	int start, field;
	uint32_t seed;
};

static uint32_t add(uint32_t sum, const uint8_t *bytes, int len)
{
	int at;

	for (at = 0; at < len; at++)
		sum += at & 1 ? bytes[at] : (uint32_t)bytes[at] << 8;
	while (sum >> 16)
		sum = (sum & 0xffff) + (sum >> 16);
	return sum;
}

static void put16(uint8_t *at, unsigned int value)
{
	at[0] = value >> 8;
	at[1] = value;
}

static unsigned int get16(const uint8_t *at)
{
	return at[0] << 8 | at[1];
}

/* Where an IPv4 header goes: its length, when all behind it is known. */
static void ipv4(uint8_t *at, int header, int total, int protocol, unsigned int fragment)
{
	static const uint8_t from[] = { 192, 0, 2, 1 }, to[] = { 192, 0, 2, 2 };

	memset(at, 0, header);
	at[0] = 0x40 | header / 4;
	put16(at + 2, total);
	put16(at + 4, 0x1234);
	put16(at + 6, fragment);
	at[8] = 64;
	at[9] = protocol;
	memcpy(at + 12, from, 4);
	memcpy(at + 16, to, 4);
	/* Options that say nothing. */
	memset(at + 20, 1, header - 20);
	put16(at + 10, ~add(0, at, header));
}

static void ipv6(uint8_t *at, int payload, int next)
{
	static const uint8_t net[] = { 0x20, 1, 0x0d, 0xb8 };

	memset(at, 0, 40);
	at[0] = 0x60;
	put16(at + 4, payload);
	at[6] = next;
	at[7] = 64;
	memcpy(at + 8, net, 4);
	at[23] = 1;
	memcpy(at + 24, net, 4);
	at[39] = 2;
}

/* The pseudo header's sum, of an IP header of either version. */
static uint32_t pseudo(const uint8_t *ip, int protocol, int len)
{
	uint32_t sum = protocol + len;

	return ip[0] >> 4 == 4 ? add(sum, ip + 12, 8) : add(sum, ip + 8, 32);
}

/* The sum over `len` bytes, as it is written: 0 says that there is none. */
static unsigned int written(uint32_t seed, const uint8_t *at, int len)
{
	unsigned int sum = ~add(seed, at, len) & 0xffff;

	return sum ? sum : 0xffff;
}

/* A parcel with its sum written. `ends` are both addresses. */
static void make(struct parcel *p, const uint8_t *ends, int kind, int udp, int number, int count)
{
	const char *name = kinds[kind];
	int payload = count > 1 ? SMALLEST + (LARGEST - SMALLEST) * number / (count - 1) : LARGEST;
	int vxlan = !!strstr(name, "vxlan"), tagged = !strncmp(name, "qinq", 4), six = !!strstr(name, "ipv6") || !strcmp(name, "6in4");
	int icmp = !strcmp(name, "icmp"), protocol = icmp ? 1 : udp ? 17 : 6, l4 = icmp || udp ? 8 : 20;
	int options = !strcmp(name, "ipv4-options") ? 8 : 0, next = protocol, extensions = 0;
	int outer = -1, outer_udp = -1, ip, at = 12, k;
	uint8_t *b = p->bytes;

	memset(p, 0, sizeof(*p));
	memcpy(b, ends, 12);
	if (tagged || !strcmp(name, "802.1ad")) {
		put16(b + at, 0x88a8);
		put16(b + at + 2, 7);
		at += 4;
	}
	if (tagged || !strcmp(name, "802.1q")) {
		put16(b + at, 0x8100);
		put16(b + at + 2, 5);
		at += 4;
	}
	/* The type, which is the tunnel's if there is one. */
	put16(b + at, six && strcmp(name, "6in4") ? 0x86dd : 0x0800);
	if (!strcmp(name, "mpls")) {
		static const uint8_t label[] = { 0x88, 0x47, 0, 1, 0x11, 64 };

		memcpy(b + at, label, sizeof(label));
		at += 4;
	} else if (!strcmp(name, "pppoe")) {
		static const uint8_t session[] = { 0x88, 0x64, 0x11, 0, 0, 9, 0, 0, 0, 0x21 };

		memcpy(b + at, session, sizeof(session));
		put16(b + at + 6, 2 + 20 + l4 + payload);
		at += 8;
	}
	at += 2;
	if (vxlan || !strcmp(name, "gre") || !strcmp(name, "ipip") || !strcmp(name, "6in4")) {
		outer = at;
		at += 20;
		if (vxlan) {
			outer_udp = at;
			at += 8;
			b[at] = 8;
			b[at + 6] = 3;
			at += 8;
			memcpy(b + at, "\x02\0\0\0\0\1\x02\0\0\0\0\2\x08\0", 14);
			at += 14;
		} else if (!strcmp(name, "gre")) {
			put16(b + at + 2, 0x0800);
			at += 4;
		}
	}
	ip = at;
	at += six ? 40 : 20 + options;
	if (!strcmp(name, "ipv6-extensions")) {
		/* Hop by hop, destination: each eight bytes of padding. */
		next = 0;
		memcpy(b + at, "\x3c\0\1\4\0\0\0\0", 8);
		memcpy(b + at + 8, "\0\0\1\4\0\0\0\0", 8);
		b[at + 8] = protocol;
		extensions = 16;
	} else if (!strcmp(name, "fragment-ipv6")) {
		/* The first of several. */
		next = 44;
		memcpy(b + at, "\0\0\0\1\0\0\0\7", 8);
		b[at] = protocol;
		extensions = 8;
	}
	at += extensions;
	/* A fragment's payload is a multiple of eight bytes. */
	if (!strncmp(name, "fragment", 8))
		payload += -(l4 + payload) & 7;
	p->len = at + l4 + payload;
	if (six)
		ipv6(b + ip, extensions + l4 + payload, next);
	else
		ipv4(b + ip, 20 + options, 20 + options + l4 + payload, protocol, !strcmp(name, "fragment") ? 0x2000 : 0);
	/* Of each one its own ports: no two are put together on the way. */
	p->start = at;
	if (icmp) {
		/* An answer, whose sum has no pseudo header. */
		p->field = at + 2;
	} else {
		put16(b + at, 20000 + number);
		put16(b + at + 2, 30000 + kind * L4S + udp);
		p->field = at + (udp ? 6 : 16);
		p->seed = pseudo(b + ip, protocol, l4 + payload);
		if (udp) {
			put16(b + at + 4, l4 + payload);
		} else {
			b[at + 12] = 0x50;
			b[at + 13] = 0x10;
			put16(b + at + 14, 1000);
		}
	}
	for (k = at + l4; k < p->len - TRAILER; k++)
		b[k] = k * 7 + number * 13 + kind;
	b[k++] = MARK;
	b[k++] = kind;
	b[k++] = udp;
	put16(b + k, number);
	put16(b + k + 2, count);
	b[k + 4] = MARK;
	put16(b + p->field, written(p->seed, b + p->start, p->len - p->start));
	if (outer >= 0)
		ipv4(b + outer, 20, p->len - outer, vxlan ? 17 : !strcmp(name, "gre") ? 47 : six ? 41 : 4, 0);
	if (outer_udp >= 0) {
		put16(b + outer_udp, 20000 + number);
		put16(b + outer_udp + 2, 4789);
		put16(b + outer_udp + 4, p->len - outer_udp);
		/* By IPv4 it may stay out. Written it is right once the inner one is. */
		if (!strcmp(name, "vxlan-sum"))
			put16(b + outer_udp + 6,
			      written(pseudo(b + outer, 17, p->len - outer_udp), b + outer_udp, p->len - outer_udp));
	}
}

static int on(const char *device, int protocol)
{
	struct sockaddr_ll at = { .sll_family = AF_PACKET, .sll_protocol = htons(protocol) };
	int fd = socket(AF_PACKET, SOCK_RAW, htons(protocol)), room = 8 << 20, yes = 1;

	at.sll_ifindex = if_nametoindex(device);
	if (fd < 0 || !at.sll_ifindex || setsockopt(fd, SOL_PACKET, PACKET_VNET_HDR, &yes, sizeof(yes)) ||
	    setsockopt(fd, SOL_PACKET, PACKET_AUXDATA, &yes, sizeof(yes)) || bind(fd, (struct sockaddr *)&at, sizeof(at))) {
		fprintf(stderr, "%s: %s\n", device, strerror(errno));
		exit(1);
	}
	setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof(room));
	return fd;
}

/* Whether a kind is one of those named; all are where none is. */
static int wanted(int kind, char **names)
{
	if (!*names)
		return 1;
	for (; *names; names++)
		if (!strcmp(*names, kinds[kind]))
			return 1;
	return 0;
}

static void known(char **names)
{
	for (; *names; names++) {
		int kind = 0;

		while (kind < KINDS && strcmp(*names, kinds[kind]))
			kind++;
		if (kind == KINDS) {
			fprintf(stderr, "no kind %s\n", *names);
			exit(2);
		}
	}
}

static int send_all(const char *device, const char *to, int count, char **names)
{
	uint8_t ends[12];
	int fd = on(device, ETHERNET), kind, udp, number, sent = 0;

	if (sscanf(to, "%hhx:%hhx:%hhx:%hhx:%hhx:%hhx", ends, ends + 1, ends + 2, ends + 3, ends + 4, ends + 5) != 6) {
		fprintf(stderr, "%s: no address\n", to);
		return 1;
	}
	/* As from a nested guest. */
	memcpy(ends + 6, "\x02\0\0\0\0\x86", 6);
	for (kind = 0; kind < KINDS; kind++) {
		for (udp = 0; udp < L4S && wanted(kind, names); udp++) {
			for (number = 0; number < count; number++) {
				struct { struct virtio_net_hdr header; uint8_t frame[MOST]; } __attribute__((packed)) out;
				struct sockaddr_ll at = { .sll_family = AF_PACKET, .sll_ifindex = if_nametoindex(device), .sll_halen = 6 };
				struct parcel p;
				int len;

				make(&p, ends, kind, udp, number, count);
				/* Blank: what is to be added for the head stands there already. */
				put16(p.bytes + p.field, p.seed);
				memset(&out.header, 0, sizeof(out.header));
				out.header.flags = VIRTIO_NET_HDR_F_NEEDS_CSUM;
				out.header.csum_start = p.start;
				out.header.csum_offset = p.field - p.start;
				memcpy(out.frame, p.bytes, p.len);
				memcpy(at.sll_addr, ends, 6);
				/* By this the kernel knows what it sends. */
				at.sll_protocol = htons(get16(p.bytes + 12));
				len = sizeof(out.header) + p.len;
				if (sendto(fd, &out, len, 0, (struct sockaddr *)&at, sizeof(at)) != len) {
					fprintf(stderr, "%s: %d bytes: %s\n", kinds[kind], p.len, strerror(errno));
					return 1;
				}
				sent++;
				usleep(PAUSE_US);
			}
		}
	}
	printf("%d sent\n", sent);
	return 0;
}

/* A frame with its outer tag, which the kernel takes out; and what is still to be done to it. */
static int received(int fd, uint8_t *frame, struct virtio_net_hdr *header)
{
	char control[CMSG_SPACE(sizeof(struct tpacket_auxdata))];
	struct iovec parts[] = { { header, sizeof(*header) }, { frame, MOST - 4 } };
	struct msghdr message = { .msg_iov = parts, .msg_iovlen = 2, .msg_control = control, .msg_controllen = sizeof(control) };
	int len = recvmsg(fd, &message, 0) - (int)sizeof(*header);
	struct cmsghdr *part;

	for (part = CMSG_FIRSTHDR(&message); len >= 14 && part; part = CMSG_NXTHDR(&message, part)) {
		struct tpacket_auxdata *about = (struct tpacket_auxdata *)CMSG_DATA(part);

		if (part->cmsg_level != SOL_PACKET || part->cmsg_type != PACKET_AUXDATA || !(about->tp_status & TP_STATUS_VLAN_VALID))
			continue;
		memmove(frame + 16, frame + 12, len - 12);
		put16(frame + 12, about->tp_status & TP_STATUS_VLAN_TPID_VALID ? about->tp_vlan_tpid : 0x8100);
		put16(frame + 14, about->tp_vlan_tci);
		header->csum_start += 4;
		len += 4;
	}
	return len;
}

static int take_all(const char *device, int count, char **names)
{
	static uint8_t seen[KINDS][L4S][COUNT_MAX];
	static char why[KINDS][L4S][64];
	int all = 0, whole = 0, again = 0, patience = FIRST_MS, kind, udp, number;
	struct pollfd ready = { .fd = on(device, ETHERNET), .events = POLLIN };
	char said[SAID] = "";

	for (kind = 0; kind < KINDS; kind++)
		all += wanted(kind, names) ? L4S * count : 0;
	printf("taking\n");
	fflush(stdout);
	while (whole < all && poll(&ready, 1, patience) > 0) {
		uint8_t frame[MOST];
		struct virtio_net_hdr header;
		struct parcel p;
		int len = received(ready.fd, frame, &header), at, field;
		const uint8_t *last = frame + len - TRAILER;

		if (len < 14 + TRAILER || last[0] != MARK || last[7] != MARK || last[1] >= KINDS || last[2] >= L4S)
			continue;
		kind = last[1], udp = last[2], number = get16(last + 3);
		if (get16(last + 5) != (unsigned int)count || number >= count || !wanted(kind, names))
			continue;
		patience = PATIENCE_MS;
		make(&p, frame, kind, udp, number, count);
		field = header.csum_start + header.csum_offset;
		if (!(header.flags & VIRTIO_NET_HDR_F_NEEDS_CSUM)) {
			/* Written, or it is not. */
		} else if (header.csum_start == p.start && field == p.field) {
			put16(frame + field, written(0, frame + header.csum_start, len - header.csum_start));
		} else {
			snprintf(why[kind][udp], sizeof(why[kind][udp]), " blank at %d,%d and not %d,%d", header.csum_start, field, p.start,
				 p.field);
			continue;
		}
		for (at = 0; at < p.len && at < len && frame[at] == p.bytes[at];)
			at++;
		if (len != p.len || at != len) {
			snprintf(why[kind][udp], sizeof(why[kind][udp]), at == p.field ? " sum not written" : " %d bytes for %d, from %d", len,
				 p.len, at);
			continue;
		}
		again += seen[kind][udp][number];
		whole += !seen[kind][udp][number];
		seen[kind][udp][number] = 1;
	}
	for (kind = 0; kind < KINDS; kind++)
		for (udp = 0; udp < L4S && wanted(kind, names); udp++) {
			int came = 0, used = strlen(said);

			for (number = 0; number < count; number++)
				came += seen[kind][udp][number];
			if (came == count)
				continue;
			printf("%s %s: %d of %d%s\n", kinds[kind], udp ? "UDP" : "TCP", came, count, why[kind][udp]);
			snprintf(said + used, sizeof(said) - used, " %s-%s", kinds[kind], udp ? "udp" : "tcp");
		}
	printf("%d of %d whole%s%s%s\n", whole, all, again ? ", some twice" : "", *said ? "; not" : "", said);
	return whole == all && !again ? 0 : 1;
}

/* An attribute at the end of a message; further ones may be put into it. */
static struct rtattr *attribute(struct nlmsghdr *message, int type, const void *data, int len)
{
	struct rtattr *made = (struct rtattr *)((char *)message + NLMSG_ALIGN(message->nlmsg_len));

	made->rta_type = type;
	made->rta_len = RTA_LENGTH(len);
	if (len)
		memcpy(RTA_DATA(made), data, len);
	message->nlmsg_len = NLMSG_ALIGN(message->nlmsg_len) + RTA_ALIGN(made->rta_len);
	return made;
}

static void holds(struct nlmsghdr *message, struct rtattr *outer)
{
	outer->rta_len = (char *)message + NLMSG_ALIGN(message->nlmsg_len) - (char *)outer;
}

static int vxlan(char **words)
{
	union { struct nlmsghdr message; char room[1024]; } asked = { 0 };
	struct nlmsghdr *message = &asked.message;
	struct { struct nlmsghdr message; struct nlmsgerr error; char room[1024]; } answer;
	struct rtattr *info, *data;
	uint32_t id = atoi(words[1]), device = if_nametoindex(words[4]);
	struct in_addr local, remote;
	uint16_t port = htons(4790);
	uint8_t no = 0;
	int fd = socket(AF_NETLINK, SOCK_RAW, NETLINK_ROUTE);

	if (!device || inet_pton(AF_INET, words[2], &local) != 1 || inet_pton(AF_INET, words[3], &remote) != 1) {
		fprintf(stderr, "vxlan NAME ID LOCAL REMOTE DEVICE\n");
		return 2;
	}
	message->nlmsg_type = RTM_NEWLINK;
	message->nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL;
	message->nlmsg_len = NLMSG_LENGTH(sizeof(struct ifinfomsg));
	attribute(message, IFLA_IFNAME, words[0], strlen(words[0]) + 1);
	info = attribute(message, IFLA_LINKINFO, NULL, 0);
	attribute(message, IFLA_INFO_KIND, "vxlan", 5);
	data = attribute(message, IFLA_INFO_DATA, NULL, 0);
	attribute(message, IFLA_VXLAN_ID, &id, sizeof(id));
	attribute(message, IFLA_VXLAN_LOCAL, &local, sizeof(local));
	attribute(message, IFLA_VXLAN_GROUP, &remote, sizeof(remote));
	attribute(message, IFLA_VXLAN_LINK, &device, sizeof(device));
	attribute(message, IFLA_VXLAN_PORT, &port, sizeof(port));
	attribute(message, IFLA_VXLAN_LEARNING, &no, sizeof(no));
	holds(message, data);
	holds(message, info);
	if (fd < 0 || send(fd, message, message->nlmsg_len, 0) < 0 || recv(fd, &answer, sizeof(answer), 0) < (int)sizeof(answer.message) + 4)
		return perror("vxlan"), 1;
	if (answer.message.nlmsg_type == NLMSG_ERROR && answer.error.error)
		return fprintf(stderr, "vxlan: %s\n", strerror(-answer.error.error)), 1;
	return 0;
}

static int listen_to(int port, long bytes, int count)
{
	struct sockaddr_in6 at = { .sin6_family = AF_INET6, .sin6_port = htons(port) };
	int tcp = socket(AF_INET6, SOCK_STREAM, 0), udp = socket(AF_INET6, SOCK_DGRAM, 0), yes = 1, got = 0, peer;
	struct pollfd ready = { .events = POLLIN };
	static uint8_t buffer[65536];
	long came = 0;

	setsockopt(tcp, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
	if (bind(tcp, (struct sockaddr *)&at, sizeof(at)) || bind(udp, (struct sockaddr *)&at, sizeof(at)) || listen(tcp, 1))
		return perror("listen"), 1;
	printf("listening\n");
	fflush(stdout);
	ready.fd = tcp;
	if (poll(&ready, 1, FIRST_MS) <= 0)
		return printf("no connection by TCP\n"), 1;
	peer = accept(tcp, NULL, NULL);
	ready.fd = peer;
	while (poll(&ready, 1, FIRST_MS) > 0) {
		int n = recv(peer, buffer, sizeof(buffer), 0), k;

		if (n <= 0)
			break;
		for (k = 0; k < n; k++, came++)
			if (buffer[k] != (uint8_t)(came % 251))
				return printf("another byte at %ld\n", came), 1;
	}
	/* The sender goes on when all is here. */
	close(peer);
	ready.fd = udp;
	while (got < count && poll(&ready, 1, PATIENCE_MS) > 0)
		got += recv(udp, buffer, sizeof(buffer), 0) > 0;
	printf("%ld of %ld bytes, %d of %d datagrams\n", came, bytes, got, count);
	return came == bytes && got == count ? 0 : 1;
}

static int with_extensions(int type)
{
	/* What is next, which the kernel writes; eight bytes; padding. */
	static const uint8_t padding[] = { 0, 0, 1, 4, 0, 0, 0, 0 };
	int fd = socket(AF_INET6, type, 0);

	if (fd < 0 || setsockopt(fd, IPPROTO_IPV6, IPV6_HOPOPTS, padding, sizeof(padding)) ||
	    setsockopt(fd, IPPROTO_IPV6, IPV6_DSTOPTS, padding, sizeof(padding))) {
		perror("extension headers");
		exit(1);
	}
	return fd;
}

static int talk(const char *to, int port, long bytes, int count)
{
	struct sockaddr_in6 at = { .sin6_family = AF_INET6, .sin6_port = htons(port) };
	int tcp = with_extensions(SOCK_STREAM), udp = with_extensions(SOCK_DGRAM), k;
	uint8_t buffer[4096];
	long went = 0;

	if (inet_pton(AF_INET6, to, &at.sin6_addr) != 1 || connect(tcp, (struct sockaddr *)&at, sizeof(at)))
		return perror(to), 1;
	while (went < bytes) {
		int n = bytes - went < (long)sizeof(buffer) ? bytes - went : (long)sizeof(buffer);

		for (k = 0; k < n; k++)
			buffer[k] = (went + k) % 251;
		n = send(tcp, buffer, n, 0);
		if (n <= 0)
			return perror(to), 1;
		went += n;
	}
	shutdown(tcp, SHUT_WR);
	if (recv(tcp, buffer, 1, 0) < 0)
		return perror(to), 1;
	for (k = 0; k < count; k++) {
		if (sendto(udp, buffer, 1 + k * 1301 % 1400, 0, (struct sockaddr *)&at, sizeof(at)) < 0)
			return perror(to), 1;
		usleep(PAUSE_US);
	}
	printf("%ld bytes, %d datagrams went\n", went, count);
	return 0;
}

int main(int argc, char **argv)
{
	const char *verb = argc > 1 ? argv[1] : "";
	int count = argc > 3 ? atoi(argv[!strcmp(verb, "send") && argc > 4 ? 4 : 3]) : 0;

	if (!strcmp(verb, "send") && argc >= 5 && count > 0 && count <= COUNT_MAX)
		return known(argv + 5), send_all(argv[2], argv[3], count, argv + 5);
	if (!strcmp(verb, "take") && argc >= 4 && count > 0 && count <= COUNT_MAX)
		return known(argv + 4), take_all(argv[2], count, argv + 4);
	if (!strcmp(verb, "vxlan") && argc == 7)
		return vxlan(argv + 2);
	if (!strcmp(verb, "listen") && argc == 5)
		return listen_to(atoi(argv[2]), atol(argv[3]), atoi(argv[4]));
	if (!strcmp(verb, "talk") && argc == 6)
		return talk(argv[2], atoi(argv[3]), atol(argv[4]), atoi(argv[5]));
	fprintf(stderr, "parcels send DEVICE TO COUNT [KIND...] | take DEVICE COUNT [KIND...] | vxlan NAME ID LOCAL REMOTE DEVICE |\n"
			"listen PORT BYTES COUNT | talk ADDRESS PORT BYTES COUNT\n");
	return 2;
}
