/*
 * Frames whose payload is in a program's own pages, beside bytes that are not sent: what a driver
 * that lends pages shows of these.
 *
 *   beside ADDRESS          datagrams to it, until it is ended
 *
 *   page    | MARKER, again and again | payload, from the middle on      sent without a copy (MSG_ZEROCOPY)
 *   page    | payload, to the middle  | MARKER, again and again
 *
 * Between two of them one of MARKER goes to a socket of this machine that no one reads, and one of
 * payload to ADDRESS, both copied by the kernel: to pages that all sockets of a task share. The
 * route to ADDRESS has an MTU above LEN. hostile_back searches for MARKER. Licence: as the
 * project's, MIT OR Apache-2.0.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#ifndef SO_ZEROCOPY
#define SO_ZEROCOPY 60
#define MSG_ZEROCOPY 0x4000000
#endif
/* Above what the kernel puts into one piece. */
#define LEN 20000
#define PAGE 4096
#define PAUSE_US 20000

static const char marker[] = "pregrant-beside-";

static int udp(const char *to, int port)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(port) };
	int one = 1, room = 1 << 20, sock = socket(AF_INET, SOCK_DGRAM, 0);

	if (sock < 0 || inet_pton(AF_INET, to, &at.sin_addr) != 1 || setsockopt(sock, SOL_SOCKET, SO_SNDBUF, &room, sizeof(room)) ||
	    setsockopt(sock, SOL_SOCKET, SO_ZEROCOPY, &one, sizeof(one)) || connect(sock, (void *)&at, sizeof(at))) {
		perror("beside: a socket");
		exit(1);
	}
	return sock;
}

/* By its queue of errors the kernel says which pages it has done with: that is not used. */
static void forget(int sock)
{
	char control[256];
	struct msghdr msg;

	do
		msg = (struct msghdr) { .msg_control = control, .msg_controllen = sizeof(control) };
	while (recvmsg(sock, &msg, MSG_ERRQUEUE | MSG_DONTWAIT) >= 0);
}

/* Once. */
static void say_first(unsigned long sent)
{
	if (sent == 1)
		puts("sends");
	fflush(stdout);
}

int main(int argc, char **argv)
{
	struct sockaddr_in own = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int port = 0x8899, unread = socket(AF_INET, SOCK_DGRAM, 0), out, local;
	size_t pages = (LEN + PAGE - 1) / PAGE + 1, bytes = pages * PAGE, k;
	static char plain[LEN], marked[LEN];
	unsigned long sent = 0;
	char *at;

	own.sin_port = htons(port);
	if (argc != 2 || unread < 0 || bind(unread, (void *)&own, sizeof(own))) {
		fprintf(stderr, "beside ADDRESS\n");
		return 2;
	}
	out = udp(argv[1], 9);
	local = udp("127.0.0.1", port);
	at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (at == MAP_FAILED)
		return 1;
	for (k = 0; k < bytes; k++)
		at[k] = marker[k % (sizeof(marker) - 1)];
	for (k = 0; k < LEN; k++)
		marked[k] = marker[k % (sizeof(marker) - 1)];
	memset(at + PAGE / 2, 'S', LEN);
	memset(plain, 'S', LEN);
	for (;;) {
		if (send(out, at + PAGE / 2, LEN, MSG_ZEROCOPY | MSG_DONTWAIT) == LEN)
			say_first(++sent);
		else if (errno != EAGAIN && errno != ENOBUFS)
			perror("beside: without a copy");
		forget(out);
		send(local, marked, LEN, MSG_DONTWAIT);
		send(out, plain, LEN, MSG_DONTWAIT);
		usleep(PAUSE_US);
	}
}
