/* A guest of the loopback that knows docs/protocol 8.5 alone (and 1, 2, 8.1 and 8.4): it attaches,
 * connects its vif 0, and asks for the hardware address of another guest, which it prints.
 *
 *   guest-in-c DIR DOMID A.B.C.D
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <poll.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define PAGE 4096u
#define VERSION 3u
enum { ATTACH = 1, MAPPED = 2, PEER = 3, UPCALL = 4, OFFER = 5 };

static void fail(const char *what) {
	perror(what);
	exit(1);
}

/* --- the broker ------------------------------------------------------------------------------- */

struct request { uint32_t op, a, b, name_len; uint64_t c; };
struct reply { uint32_t error, pad; uint64_t word[8]; };

static int broker;

static struct reply ask(uint32_t op, uint32_t a, uint32_t b, uint64_t c, int *fds, int most) {
	struct request request = { op, a, b, 0, c };
	struct reply reply;
	union { char bytes[CMSG_SPACE(4 * sizeof(int))]; struct cmsghdr align; } control;
	struct iovec iov = { &reply, sizeof reply };
	struct msghdr message = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control };
	if (send(broker, &request, 24, 0) != 24) fail("send to the broker");
	if (recvmsg(broker, &message, 0) != sizeof reply) fail("a reply of the broker");
	if (reply.error) {
		fprintf(stderr, "op %u: %s\n", op, strerror((int)reply.error));
		exit(1);
	}
	struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
	int n = rights ? (int)((rights->cmsg_len - CMSG_LEN(0)) / sizeof(int)) : 0;
	if (n > most) exit(2);
	if (n) memcpy(fds, CMSG_DATA(rights), (size_t)n * sizeof(int));
	return reply;
}

/* --- memory and ledger ------------------------------------------------------------------------ */

struct domain { uint8_t *memory, *ledger; uint64_t pages, grants; };

static size_t ledger_len(const struct domain *d) {
	size_t len = 118784 + d->grants * (8 + 4 + 1) + d->pages;
	return (len + PAGE - 1) / PAGE * PAGE;
}

static struct domain map(int memory, int ledger, uint64_t pages, uint64_t grants) {
	struct domain d = { .pages = pages, .grants = grants };
	d.memory = mmap(0, pages * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
	d.ledger = mmap(0, ledger_len(&d), PROT_READ | PROT_WRITE, MAP_SHARED, ledger, 0);
	if (d.memory == MAP_FAILED || d.ledger == MAP_FAILED) fail("mmap");
	if (*(uint32_t *)d.ledger != 0x50726732) exit(2);
	return d;
}

static struct domain own;
static unsigned slot;

static uint64_t take(size_t at, uint64_t from, uint64_t count) {
	for (uint64_t i = from; i < count; i++) {
		uint8_t free = 0;
		if (atomic_compare_exchange_strong((_Atomic uint8_t *)(own.ledger + at + i), &free, (uint8_t)(slot + 1)))
			return i;
	}
	exit(2);
}

/* A page that `to` may use; its grant reference in *gref. */
static void *granted(unsigned to, int readonly, uint32_t *gref) {
	uint64_t page = take(118784 + own.grants * 13, 0, own.pages);
	memset(own.memory + page * PAGE, 0, PAGE);
	*gref = (uint32_t)take(118784 + own.grants * 12, 8, own.grants);
	uint32_t *entry = (uint32_t *)(own.memory + *gref * 8);
	entry[1] = (uint32_t)page;
	atomic_store_explicit((_Atomic uint32_t *)entry, 1u | (readonly ? 4u : 0) | to << 16, memory_order_release);
	return own.memory + page * PAGE;
}

/* --- events ----------------------------------------------------------------------------------- */

static void notify(unsigned port) {
	static struct domain peer;
	static int wake = -1;
	uint64_t route = atomic_load((_Atomic uint64_t *)(own.ledger + 86016 + port * 8));
	if ((route & 0xFF) != 1) return;
	unsigned to = route >> 16 & 0xFFFF, its_slot = route >> 8 & 0xFF, its_port = route >> 32 & 0xFFFF;
	if (!peer.memory) {
		int fds[2];
		struct reply reply = ask(PEER, 0, to, 0, fds, 2);
		peer = map(fds[0], fds[1], reply.word[2], reply.word[3]);
		ask(UPCALL, its_slot, to, 0, &wake, 1);
	}
	uint8_t *bits = peer.ledger + PAGE * (1 + its_slot);
	uint64_t bit = 1ull << its_port % 64;
	if (atomic_fetch_or((_Atomic uint64_t *)(bits + its_port / 64 * 8), bit) & bit) return;
	if (atomic_load((_Atomic uint64_t *)(bits + 512 + its_port / 64 * 8)) & bit) return;
	atomic_fetch_or((_Atomic uint64_t *)(bits + 1024), 1ull << its_port / 64);
	atomic_thread_fence(memory_order_seq_cst);
	if (atomic_exchange((_Atomic uint32_t *)(bits + 1088), 0)) {
		uint64_t one = 1;
		if (write(wake, &one, 8) != 8) fail("wake the peer");
	}
}

/* Sleeps for an event of the only port, at most 100 ms. */
static void sleep_for(int upcall, unsigned port) {
	uint8_t *bits = own.ledger + PAGE * (1 + slot);
	_Atomic uint64_t *selector = (_Atomic uint64_t *)(bits + 1024);
	_Atomic uint64_t *pending = (_Atomic uint64_t *)(bits + port / 64 * 8);
	atomic_store((_Atomic uint32_t *)(bits + 1088), 1);
	atomic_thread_fence(memory_order_seq_cst);
	if (!atomic_load(selector)) {
		struct pollfd fd = { upcall, POLLIN, 0 };
		uint64_t count;
		if (poll(&fd, 1, 100) == 1 && read(upcall, &count, 8) != 8) fail("read the eventfd");
	}
	atomic_store((_Atomic uint32_t *)(bits + 1088), 0);
	atomic_exchange(selector, 0);
	atomic_fetch_and(pending, ~(1ull << port % 64)); /* it was never masked: read the ring now */
}

/* --- xenstore --------------------------------------------------------------------------------- */

static int store;

/* READ (2) or WRITE (11); the answer's payload, ended by a NUL. */
static int xs(uint32_t type, const char *path, const char *value, char *answer) {
	uint32_t len = (uint32_t)strlen(path) + 1, more = value ? (uint32_t)strlen(value) : 0;
	uint32_t header[4] = { type, 1, 0, len + more };
	char message[2048];
	memcpy(message, header, 16);
	memcpy(message + 16, path, len);
	if (value) memcpy(message + 16 + len, value, more);
	if (send(store, message, 16 + len + more, 0) != (ssize_t)(16 + len + more)) fail("send to xenstore");
	if (recv(store, header, 16, MSG_WAITALL) != 16) fail("xenstore's answer");
	if (header[3] && recv(store, message, header[3], MSG_WAITALL) != (ssize_t)header[3]) fail("xenstore's answer");
	message[header[3]] = 0;
	if (answer) strcpy(answer, message);
	return header[0] != 16; /* ERROR */
}

static void set(const char *key, unsigned value) {
	char path[64], text[16];
	sprintf(path, "device/vif/0/%s", key);
	sprintf(text, "%u", value);
	if (!xs(11, path, text, 0)) exit(2);
}

static void await_state(const char *back, char state) {
	char path[256], seen[2048];
	sprintf(path, "%s/state", back);
	while (!xs(2, path, 0, seen) || seen[0] != state) usleep(5000);
}

/* --- the vif ---------------------------------------------------------------------------------- */

struct ring { _Atomic uint32_t req_prod, req_event, rsp_prod, rsp_event; uint8_t private[48]; uint32_t slot[1008]; };

int main(int argc, char **argv) {
	if (argc != 4) return 2;
	unsigned domid = (unsigned)atoi(argv[2]);
	struct sockaddr_un at = { .sun_family = AF_UNIX };
	snprintf(at.sun_path, sizeof at.sun_path, "%s/broker.sock", argv[1]);
	broker = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (connect(broker, (struct sockaddr *)&at, sizeof at)) fail("connect to the broker");
	int fds[4];
	struct reply reply = ask(ATTACH, VERSION, domid, (uint64_t)getpid(), fds, 4);
	slot = (unsigned)reply.word[0];
	own = map(fds[0], fds[1], reply.word[1], reply.word[2]);
	int upcall = fds[2];
	store = fds[3];
	prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
	ask(MAPPED, 0, 0, (uint64_t)own.memory, 0, 0);

	char back[2048], text[2048];
	unsigned mac[6];
	if (!xs(2, "device/vif/0/backend", 0, back) || !xs(2, "device/vif/0/mac", 0, text)) return 3;
	sscanf(text, "%x:%x:%x:%x:%x:%x", mac, mac + 1, mac + 2, mac + 3, mac + 4, mac + 5);
	if (!xs(2, "device/vif/0/backend-id", 0, text)) return 3;
	unsigned back_domain = (unsigned)atoi(text);

	await_state(back, '2');
	uint32_t tx_ref, rx_ref, out_ref, in_ref[16];
	struct ring *tx = granted(back_domain, 0, &tx_ref), *rx = granted(back_domain, 0, &rx_ref);
	uint8_t *out = granted(back_domain, 1, &out_ref), *in[16];
	tx->req_event = tx->rsp_event = rx->req_event = rx->rsp_event = 1;
	unsigned port = (unsigned)ask(OFFER, 0, back_domain, 0, 0, 0).word[0];
	set("tx-ring-ref", tx_ref);
	set("rx-ring-ref", rx_ref);
	set("event-channel", port);
	set("request-rx-copy", 1);
	set("feature-rx-notify", 1);
	set("state", 4);
	await_state(back, '4');
	for (unsigned i = 0; i < 16; i++) { /* RX request: id u16, pad u16, gref u32 */
		in[i] = granted(back_domain, 0, &in_ref[i]);
		rx->slot[i * 2] = i;
		rx->slot[i * 2 + 1] = in_ref[i];
	}
	atomic_store(&rx->req_prod, 16);
	notify(port);

	uint8_t target[4], source[4] = { 10, 0, (uint8_t)(domid >> 8), (uint8_t)domid };
	if (inet_pton(AF_INET, argv[3], target) != 1) return 2;
	memset(out, 0xFF, 6);
	for (int i = 0; i < 6; i++) out[6 + i] = out[22 + i] = (uint8_t)mac[i];
	memcpy(out + 12, (uint8_t[]){ 8, 6, 0, 1, 8, 0, 6, 4, 0, 1 }, 10);
	memcpy(out + 28, source, 4);
	memcpy(out + 38, target, 4);
	uint32_t sent = 0, taken = 0;
	for (unsigned turn = 0; turn < 600; turn++) { /* a minute */
		if (turn % 10 == 0 && atomic_load(&tx->rsp_prod) == sent) { /* TX request: gref u32, offset u16, flags u16, id u16, size u16 */
			uint32_t *request = &tx->slot[sent % 256 * 3];
			request[0] = out_ref;
			request[1] = 0;
			request[2] = 60u << 16;
			atomic_store(&tx->req_prod, ++sent);
			notify(port);
		}
		sleep_for(upcall, port);
		while (taken != atomic_load(&rx->rsp_prod)) { /* RX answer: id u16, offset u16, flags u16, status i16 */
			uint32_t *answer = &rx->slot[taken % 256 * 2];
			uint8_t *frame = in[answer[0] % 16] + (answer[0] >> 16);
			int len = (int16_t)(answer[1] >> 16);
			if (len >= 42 && !memcmp(frame + 12, "\x08\x06", 2) && frame[21] == 2 && !memcmp(frame + 28, target, 4)) {
				for (int i = 0; i < 6; i++) printf(i ? ":%02x" : "%02x", frame[22 + i]);
				printf("\n");
				set("state", 5);
				await_state(back, '5'); /* its end lets go of the pages first */
				set("state", 6);
				await_state(back, '6');
				return 0;
			}
			uint32_t *again = &rx->slot[rx->req_prod % 256 * 2], id = answer[0] % 16;
			again[0] = id;
			again[1] = in_ref[id];
			atomic_fetch_add(&rx->req_prod, 1);
			taken++;
		}
		atomic_store(&rx->rsp_event, taken + 1);
	}
	fprintf(stderr, "no answer\n");
	return 1;
}
