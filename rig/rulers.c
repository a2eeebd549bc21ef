/*
 * Rulers: frames whose bytes say where in the frame they were when they were sent, so that what an
 * XDP program has put ahead of them, taken off or left out shows byte by byte.
 *
 *   rulers send DEVICE TO COUNT FIRST LAST     so many to an address, of FIRST to LAST bytes
 *   rulers take DEVICE HEAD TAIL COUNT         so many that the program `move HEAD TAIL` of xdp.c has moved
 *
 *   sent    | to, from | 88 b5 | 0 0 | marks of 8 bytes: number, length, place, a check of them
 *   taken   | to, from | 88 b5 | Z Z | what was HEAD bytes further on; behind what was sent, zeros
 *
 * `take` says what came, and succeeds when each number did, and no byte was another one. Licence:
 * as the project's, MIT OR Apache-2.0.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

/* For experiments: no other's. */
#define OURS 0x88b5
#define MOST 8192
#define COUNT_MAX 65536
enum { KIND = 12, MARK = 14, MARKS = 16, MARK_BYTES = 8 };
/* Silence after which no more is awaited. */
#define PATIENCE_MS 30000
/* Between two frames: no ring and no socket is to be full. */
#define PAUSE_US 2000

struct mark {
	uint16_t number, len, at, check;
};

static struct mark mark(uint16_t number, uint16_t len, uint16_t at)
{
	return (struct mark) { number, len, at, number ^ len ^ at ^ 0x6b2d };
}

/* What a frame had at `at`, behind its headers. */
static uint8_t byte(uint16_t number, uint16_t len, uint16_t at)
{
	struct mark of = mark(number, len, at & ~(MARK_BYTES - 1));

	return ((const uint8_t *)&of)[at % MARK_BYTES];
}

static int on(const char *device)
{
	struct sockaddr_ll at = { .sll_family = AF_PACKET, .sll_protocol = htons(OURS) };
	int fd = socket(AF_PACKET, SOCK_RAW, htons(OURS)), room = 8 << 20;

	at.sll_ifindex = if_nametoindex(device);
	if (fd < 0 || !at.sll_ifindex || bind(fd, (struct sockaddr *)&at, sizeof(at))) {
		fprintf(stderr, "%s: %s\n", device, strerror(errno));
		exit(1);
	}
	setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof(room));
	return fd;
}

static int send_all(int fd, const char *device, const char *to, int count, int first, int last)
{
	uint8_t frame[MOST] = { 0 }, *dst = frame;
	struct ifreq own = { 0 };
	int k, at;

	strncpy(own.ifr_name, device, IFNAMSIZ - 1);
	if (sscanf(to, "%hhx:%hhx:%hhx:%hhx:%hhx:%hhx", dst, dst + 1, dst + 2, dst + 3, dst + 4, dst + 5) != 6 ||
	    ioctl(fd, SIOCGIFHWADDR, &own)) {
		fprintf(stderr, "%s, %s: no address\n", device, to);
		return 1;
	}
	memcpy(frame + 6, own.ifr_hwaddr.sa_data, 6);
	frame[KIND] = OURS >> 8;
	frame[KIND + 1] = OURS & 0xff;
	for (k = 0; k < count; k++) {
		int len = count > 1 ? first + (int)((long)(last - first) * k / (count - 1)) : last;

		for (at = MARKS; at < len; at++)
			frame[at] = byte(k, len, at);
		if (send(fd, frame, len, 0) != len) {
			fprintf(stderr, "%d bytes: %s\n", len, strerror(errno));
			return 1;
		}
		usleep(PAUSE_US);
	}
	return 0;
}

/* Which frame of how many bytes was moved to these. Below 0: none. */
static int number_of(const uint8_t *frame, int bytes, int head, int tail)
{
	int len = bytes + head - tail, number = -1, at;
	struct mark seen, wanted;

	/* The first whole mark that is left says the number; all bytes are compared with it. */
	at = (MARKS + (head > 0 ? head : 0) + MARK_BYTES - 1) & ~(MARK_BYTES - 1);
	if (at - head + MARK_BYTES > bytes || frame[MARK] != 'Z' || frame[MARK + 1] != 'Z')
		return -1;
	memcpy(&seen, frame + at - head, sizeof(seen));
	number = seen.number;
	wanted = mark(number, len, at);
	if (memcmp(&seen, &wanted, sizeof(seen)))
		return -1;
	for (at = MARKS; at < bytes; at++) {
		int was = at + head;
		uint8_t wants;

		/* Put ahead, and not written; or the addresses of before. */
		if (was < KIND)
			continue;
		if (was < MARKS)
			wants = was == KIND ? OURS >> 8 : was == KIND + 1 ? OURS & 0xff : 0;
		else
			wants = was < len ? byte(number, len, was) : 0;
		if (frame[at] != wants)
			return -1;
	}
	return number;
}

static int take_all(int fd, int head, int tail, int count)
{
	static uint8_t seen[COUNT_MAX];
	int came = 0, wrong = 0, again = 0, least = MOST, most = 0;
	struct pollfd ready = { .fd = fd, .events = POLLIN };

	printf("taking\n");
	fflush(stdout);
	while (came < count && poll(&ready, 1, PATIENCE_MS) > 0) {
		uint8_t frame[MOST];
		int bytes = recv(fd, frame, sizeof(frame), 0), number;

		if (bytes < 0)
			continue;
		number = number_of(frame, bytes, head, tail);
		if (number < 0 || number >= count) {
			/* The first says what it was. */
			if (!wrong++)
				fprintf(stderr, "wrong: %d bytes, of them %02x%02x %02x%02x %02x%02x%02x%02x\n", bytes, frame[12],
					frame[13], frame[14], frame[15], frame[16], frame[17], frame[18], frame[19]);
			continue;
		}
		again += seen[number];
		came += !seen[number];
		seen[number] = 1;
		least = bytes < least ? bytes : least;
		most = bytes > most ? bytes : most;
	}
	printf("%d of %d came, of %d to %d bytes, %d wrong, %d twice\n", came, count, least, most, wrong, again);
	return came == count && !wrong && !again ? 0 : 1;
}

int main(int argc, char **argv)
{
	if (argc == 7 && !strcmp(argv[1], "send")) {
		int count = atoi(argv[4]), first = atoi(argv[5]), last = atoi(argv[6]);

		if (count > 0 && count < COUNT_MAX && first >= MARKS + MARK_BYTES && first <= last && last <= MOST)
			return send_all(on(argv[2]), argv[2], argv[3], count, first, last);
	}
	if (argc == 6 && !strcmp(argv[1], "take") && atoi(argv[5]) > 0 && atoi(argv[5]) < COUNT_MAX)
		return take_all(on(argv[2]), atoi(argv[3]), atoi(argv[4]), atoi(argv[5]));
	fprintf(stderr, "rulers send DEVICE TO COUNT FIRST LAST | rulers take DEVICE HEAD TAIL COUNT\n");
	return 2;
}
