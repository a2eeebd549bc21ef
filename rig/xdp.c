/*
 * Attaches an XDP program to an interface, for as long as it runs: `xdp DEVICE PROGRAM [N [TAIL]]`.
 *
 *   instructions, below --bpf(2)--> the kernel's verifier --link--> the driver's program (native mode)
 *
 *   pass, drop      all frames
 *   filter          drops all but ARP, and IPv4's ICMP and TCP
 *   echo            answers echo requests of IPv4, in their own frames
 *   tx              sends UDP of IPv4 back to the address that it came from
 *   redirect        UDP of IPv4 to the interface of index N
 *   move            rulers (rulers.c): takes N bytes off their head, or puts -N ahead of it, and adds TAIL
 *                   bytes at their end, or takes -TAIL off; their headers are where they begin then
 *   move-tx         the same, and sends them back to the address that they came from
 *   cycle           `pass`, attached and detached N times
 *
 * Guests have no compiler for such programs and no library of theirs, so instructions are written
 * out. Licence: as the project's, MIT OR Apache-2.0.
 */
#include <errno.h>
#include <linux/bpf.h>
#include <linux/if_link.h>
#include <net/if.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define OP(op, dst, src, off, imm) { (op), (dst), (src), (off), (imm) }
#define LOAD(size, dst, src, off) OP(BPF_LDX | (size) | BPF_MEM, dst, src, off, 0)
#define STORE(size, dst, off, src) OP(BPF_STX | (size) | BPF_MEM, dst, src, off, 0)
#define STORE_NUMBER(size, dst, off, imm) OP(BPF_ST | (size) | BPF_MEM, dst, 0, off, imm)
#define NUMBER(dst, imm) OP(BPF_ALU64 | BPF_MOV | BPF_K, dst, 0, 0, imm)
#define COPY(dst, src) OP(BPF_ALU64 | BPF_MOV | BPF_X, dst, src, 0, 0)
#define ADD(dst, imm) OP(BPF_ALU64 | BPF_ADD | BPF_K, dst, 0, 0, imm)
#define ADD_OF(dst, src) OP(BPF_ALU64 | BPF_ADD | BPF_X, dst, src, 0, 0)
#define AND(dst, imm) OP(BPF_ALU64 | BPF_AND | BPF_K, dst, 0, 0, imm)
#define RIGHT(dst, imm) OP(BPF_ALU64 | BPF_RSH | BPF_K, dst, 0, 0, imm)
/* `over` instructions are left out. */
#define IF_MORE(dst, src, over) OP(BPF_JMP | BPF_JGT | BPF_X, dst, src, over, 0)
#define IF_IS(dst, imm, over) OP(BPF_JMP | BPF_JEQ | BPF_K, dst, 0, over, imm)
#define IF_IS_NOT(dst, imm, over) OP(BPF_JMP | BPF_JNE | BPF_K, dst, 0, over, imm)
#define CALL(function) OP(BPF_JMP | BPF_CALL, 0, 0, 0, function)
#define VERDICT(verdict) NUMBER(0, verdict), OP(BPF_JMP | BPF_EXIT, 0, 0, 0, 0)

/*
 * r2: the frame, r3: its end. Where it has not `len` bytes the next `over` instructions are left
 * out.
 */
#define BEGIN(len, over) \
	LOAD(BPF_W, 2, 1, 0), LOAD(BPF_W, 3, 1, 4), COPY(4, 2), ADD(4, len), IF_MORE(4, 3, over)

/* As a little-endian processor reads them. */
#define ARP 0x0608
#define IPV4 0x0008
#define RULER 0xb588
#define MOVED 0x5a5a
enum { ICMP = 1, TCP = 6, UDP = 17, ECHO_REQUEST = 8 };
/* Where they are in a frame. */
enum { TO = 0, FROM = 6, KIND = 12, MARK = 14, CARRIES = 23, IP_FROM = 26, IP_TO = 30, ICMP_TYPE = 34, ICMP_SUM = 36 };

static struct bpf_insn pass[] = { VERDICT(XDP_PASS) };
static struct bpf_insn drop[] = { VERDICT(XDP_DROP) };
static struct bpf_insn filter[] = {
	BEGIN(34, 6),
	LOAD(BPF_H, 5, 2, KIND), IF_IS(5, ARP, 6), IF_IS_NOT(5, IPV4, 3),
	LOAD(BPF_B, 5, 2, CARRIES), IF_IS(5, ICMP, 3), IF_IS(5, TCP, 2),
	VERDICT(XDP_DROP),
	VERDICT(XDP_PASS),
};
static struct bpf_insn echo[] = {
	BEGIN(42, 28),
	LOAD(BPF_H, 5, 2, KIND), IF_IS_NOT(5, IPV4, 26),
	LOAD(BPF_B, 5, 2, CARRIES), IF_IS_NOT(5, ICMP, 24),
	LOAD(BPF_B, 5, 2, ICMP_TYPE), IF_IS_NOT(5, ECHO_REQUEST, 22),
	LOAD(BPF_W, 5, 2, TO), LOAD(BPF_H, 6, 2, TO + 4), LOAD(BPF_W, 7, 2, FROM), LOAD(BPF_H, 8, 2, FROM + 4),
	STORE(BPF_W, 2, TO, 7), STORE(BPF_H, 2, TO + 4, 8), STORE(BPF_W, 2, FROM, 5), STORE(BPF_H, 2, FROM + 4, 6),
	LOAD(BPF_W, 5, 2, IP_FROM), LOAD(BPF_W, 6, 2, IP_TO), STORE(BPF_W, 2, IP_FROM, 6), STORE(BPF_W, 2, IP_TO, 5),
	/*
	 * The sum grows by what the type shrinks; in the order of bytes that they have in the
	 * frame.
	 */
	STORE_NUMBER(BPF_B, 2, ICMP_TYPE, 0), LOAD(BPF_H, 5, 2, ICMP_SUM), ADD(5, ECHO_REQUEST), COPY(6, 5),
	RIGHT(6, 16), AND(5, 0xffff), ADD_OF(5, 6), STORE(BPF_H, 2, ICMP_SUM, 5),
	VERDICT(XDP_TX),
	VERDICT(XDP_PASS),
};
static struct bpf_insn tx[] = {
	BEGIN(34, 12),
	LOAD(BPF_H, 5, 2, KIND), IF_IS_NOT(5, IPV4, 10),
	LOAD(BPF_B, 5, 2, CARRIES), IF_IS_NOT(5, UDP, 8),
	LOAD(BPF_W, 5, 2, FROM), LOAD(BPF_H, 6, 2, FROM + 4), STORE(BPF_W, 2, TO, 5), STORE(BPF_H, 2, TO + 4, 6),
	/* From 02:00:00:00:00:09: its own may be no sender's. */
	STORE_NUMBER(BPF_W, 2, FROM, 2), STORE_NUMBER(BPF_H, 2, FROM + 4, 0x0900),
	VERDICT(XDP_TX),
	VERDICT(XDP_PASS),
};
static struct bpf_insn redirect[] = {
	BEGIN(34, 8),
	LOAD(BPF_H, 5, 2, KIND), IF_IS_NOT(5, IPV4, 6),
	LOAD(BPF_B, 5, 2, CARRIES), IF_IS_NOT(5, UDP, 4),
#define REDIRECT_TO 9
	NUMBER(1, 0), NUMBER(2, 0), CALL(BPF_FUNC_redirect), OP(BPF_JMP | BPF_EXIT, 0, 0, 0, 0),
	VERDICT(XDP_PASS),
};
/*
 * r7, r8: both addresses of before. What is written of them where the frame begins then is `put`
 * instructions.
 */
#define MOVE(put) \
	COPY(6, 1), BEGIN(16, (put) + 24), \
	LOAD(BPF_H, 5, 2, KIND), IF_IS_NOT(5, RULER, (put) + 22), \
	LOAD(BPF_DW, 7, 2, TO), LOAD(BPF_W, 8, 2, FROM + 2), \
	COPY(1, 6), NUMBER(2, 0), CALL(BPF_FUNC_xdp_adjust_head), IF_IS_NOT(0, 0, (put) + 14), \
	COPY(1, 6), NUMBER(2, 0), CALL(BPF_FUNC_xdp_adjust_tail), IF_IS_NOT(0, 0, (put) + 10), \
	COPY(1, 6), BEGIN(16, (put) + 4), \
	STORE_NUMBER(BPF_H, 2, KIND, RULER), STORE_NUMBER(BPF_H, 2, MARK, MOVED)
#define MOVES_HEAD 11
#define MOVES_TAIL 15
static struct bpf_insn move[] = {
	MOVE(2),
	STORE(BPF_DW, 2, TO, 7), STORE(BPF_W, 2, FROM + 2, 8),
	VERDICT(XDP_PASS),
	VERDICT(XDP_ABORTED),
	VERDICT(XDP_PASS),
};
static struct bpf_insn move_tx[] = {
	MOVE(5),
	RIGHT(7, 48), STORE(BPF_H, 2, TO, 7), STORE(BPF_W, 2, TO + 2, 8),
	STORE_NUMBER(BPF_W, 2, FROM, 2), STORE_NUMBER(BPF_H, 2, FROM + 4, 0x0900),
	VERDICT(XDP_TX),
	VERDICT(XDP_ABORTED),
	VERDICT(XDP_PASS),
};

#define COUNT(program) (sizeof(program) / sizeof((program)[0]))

static const struct program {
	const char *name;
	struct bpf_insn *code;
	unsigned int count;
} programs[] = {
	{ "pass", pass, COUNT(pass) }, { "drop", drop, COUNT(drop) }, { "filter", filter, COUNT(filter) },
	{ "echo", echo, COUNT(echo) }, { "tx", tx, COUNT(tx) }, { "redirect", redirect, COUNT(redirect) },
	{ "move", move, COUNT(move) }, { "move-tx", move_tx, COUNT(move_tx) }, { "cycle", pass, COUNT(pass) },
};

static int bpf(int command, union bpf_attr *attr)
{
	return syscall(SYS_bpf, command, attr, sizeof(*attr));
}

static int load(const struct program *program)
{
	static char log[16384];
	union bpf_attr attr;
	int fd;

	memset(&attr, 0, sizeof(attr));
	attr.prog_type = BPF_PROG_TYPE_XDP;
	attr.expected_attach_type = BPF_XDP;
	attr.insns = (uintptr_t)program->code;
	attr.insn_cnt = program->count;
	attr.license = (uintptr_t)"Dual MIT/GPL";
	attr.log_buf = (uintptr_t)log;
	attr.log_size = sizeof(log);
	attr.log_level = 1;
	fd = bpf(BPF_PROG_LOAD, &attr);
	if (fd < 0)
		fprintf(stderr, "%s: not loaded: %s\n%s", program->name, strerror(errno), log);
	return fd;
}

/* It is attached until the link is closed. */
static int attach(int program, unsigned int device)
{
	union bpf_attr attr;
	int link;

	memset(&attr, 0, sizeof(attr));
	attr.link_create.prog_fd = program;
	attr.link_create.target_ifindex = device;
	attr.link_create.attach_type = BPF_XDP;
	attr.link_create.flags = XDP_FLAGS_DRV_MODE;
	link = bpf(BPF_LINK_CREATE, &attr);
	if (link < 0)
		fprintf(stderr, "not attached: %s\n", strerror(errno));
	return link;
}

int main(int argc, char **argv)
{
	unsigned int device = argc > 2 ? if_nametoindex(argv[1]) : 0, k;
	int number = argc > 3 ? atoi(argv[3]) : 0, fd, link;
	const struct program *program = NULL;

	for (k = 0; device && k < COUNT(programs); k++)
		if (!strcmp(programs[k].name, argv[2]))
			program = &programs[k];
	if (!program) {
		fprintf(stderr, "xdp DEVICE pass|drop|filter|echo|tx|redirect|move|move-tx|cycle [N [TAIL]]\n");
		return 2;
	}
	redirect[REDIRECT_TO].imm = move[MOVES_HEAD].imm = move_tx[MOVES_HEAD].imm = number;
	move[MOVES_TAIL].imm = move_tx[MOVES_TAIL].imm = argc > 4 ? atoi(argv[4]) : 0;
	fd = load(program);
	if (fd < 0)
		return 1;
	do {
		link = attach(fd, device);
		if (link < 0)
			return 1;
		if (strcmp(program->name, "cycle")) {
			printf("%s: attached\n", program->name);
			fflush(stdout);
			pause();
		}
		close(link);
		/* With the next one's traffic, not with its own alone. */
		usleep(20000);
	} while (--number > 0);
	return 0;
}
