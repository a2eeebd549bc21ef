/*
 * Turns: TCP requests of a byte, and a byte in response, one after the other.
 *
 *   turns serve PORT [--busy USEC]                 answers, connection by connection, until it is ended
 *   turns ask ADDRESS PORT COUNT [--busy USEC]     so many; prints nanoseconds by the clock for each
 *
 * With --busy a socket that has nothing to read polls its device so long (SO_BUSY_POLL) before it
 * sleeps. Licence: as the project's, MIT OR Apache-2.0.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#ifndef SO_BUSY_POLL
#define SO_BUSY_POLL 46
#endif

static int failed(const char *what)
{
	fprintf(stderr, "turns: %s: %s\n", what, strerror(errno));
	return 1;
}

static int set(int sock, int level, int name, int to)
{
	return setsockopt(sock, level, name, &to, sizeof(to));
}

/* Each byte goes at once, and the socket waits as it was asked to. */
static int prepare(int sock, int busy)
{
	if (set(sock, IPPROTO_TCP, TCP_NODELAY, 1))
		return failed("TCP_NODELAY");
	if (busy && set(sock, SOL_SOCKET, SO_BUSY_POLL, busy))
		return failed("SO_BUSY_POLL");
	return 0;
}

static int serve(int port, int busy)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(port) };
	int sock, listener = socket(AF_INET, SOCK_STREAM, 0);
	char byte;

	if (listener < 0 || set(listener, SOL_SOCKET, SO_REUSEADDR, 1) ||
	    bind(listener, (struct sockaddr *)&at, sizeof(at)) || listen(listener, 8))
		return failed("listen");
	for (;;) {
		sock = accept(listener, NULL, NULL);
		if (sock < 0 || prepare(sock, busy))
			return failed("accept");
		while (read(sock, &byte, 1) == 1)
			if (write(sock, &byte, 1) != 1)
				break;
		close(sock);
	}
}

static int ask(const char *address, int port, long count, int busy)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(port) };
	int sock = socket(AF_INET, SOCK_STREAM, 0);
	struct timespec began, ended;
	char byte = 0;
	long k;

	if (inet_pton(AF_INET, address, &at.sin_addr) != 1) {
		fprintf(stderr, "turns: no address: %s\n", address);
		return 2;
	}
	if (sock < 0 || connect(sock, (struct sockaddr *)&at, sizeof(at)))
		return failed("connect");
	if (prepare(sock, busy))
		return 1;
	clock_gettime(CLOCK_MONOTONIC, &began);
	for (k = 0; k < count; k++) {
		char sent = byte = k;

		if (write(sock, &sent, 1) != 1 || read(sock, &byte, 1) != 1)
			return failed("the other end is gone");
		if (byte != sent) {
			fprintf(stderr, "turns: another byte came than was sent\n");
			return 1;
		}
	}
	clock_gettime(CLOCK_MONOTONIC, &ended);
	printf("%.0f\n", ((ended.tv_sec - began.tv_sec) * 1e9 + ended.tv_nsec - began.tv_nsec) / (count ? count : 1));
	return 0;
}

int main(int argc, char **argv)
{
	int busy = 0;

	if (argc > 3 && !strcmp(argv[argc - 2], "--busy")) {
		busy = atoi(argv[argc - 1]);
		if (busy <= 0) {
			fprintf(stderr, "turns: no time to poll: %s\n", argv[argc - 1]);
			return 2;
		}
		argc -= 2;
	}
	if (argc == 3 && !strcmp(argv[1], "serve"))
		return serve(atoi(argv[2]), busy);
	if (argc == 5 && !strcmp(argv[1], "ask"))
		return ask(argv[2], atoi(argv[3]), atol(argv[4]), busy);
	fprintf(stderr, "turns serve PORT [--busy USEC] | ask ADDRESS PORT COUNT [--busy USEC]\n");
	return 2;
}
