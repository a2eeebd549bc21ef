/*
 * What dom0 and guests execute between two readings of the clock, and what Xen executes for them: a
 * plugin for QEMU's emulator (TCG).
 *
 *   translated   a block of instructions, once: it gets a counter, by its addresses and its length
 *   executed     each time: the counter of the one that runs is raised
 *   marked       an instruction that loads "PREGRANT" (domain_time does): what was counted is written to a file, and all is zero
 *
 * A line of the file is "ADDRESS WHOSE INSTRUCTIONS" of a block, WHOSE being `x` for Xen's while
 * dom0 runs and `d` for dom0's own, kernel and processes, `y` and `g` the same of guests; a reading
 * begins with a line "reading GUESTS OTHERS", with the sums of these.
 *
 * Dom0 and a guest without a processor's help (PV) have the same addresses, and a plugin sees no
 * registers. Who runs is known so: Xen switches in `context_switch`, and what it executes from
 * there on belongs to whom it switches to. That is no one if `idle_loop` follows, else the owner of
 * the page from which the next instruction comes that is not Xen's. A kernel's own pages are at one
 * distance from their addresses, another one for each domain, and dom0's is there first. Other
 * pages are theirs who ran when they were first executed; no domain gets a page with code from
 * another one here.
 *
 * Counters are per block: where an exception ends one early, it has counted to its end. One
 * processor (`-icount`), so there is one thread. Nothing here changes what the machine does or what
 * its clock counts.
 *
 * Arguments: out=FILE, switch=ADDRESS and idle=ADDRESS of the two functions. Licence: as the
 * project's, MIT OR Apache-2.0.
 */
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Of the plugin interface, version 1, what is used here: Debian has no package with its header. */
#define EXPORT __attribute__((visibility("default")))
EXPORT int qemu_plugin_version = 1;
struct qemu_plugin_tb;
struct qemu_plugin_insn;
typedef void on_translated(uint64_t id, struct qemu_plugin_tb *tb);
typedef void on_executed(unsigned int cpu, void *data);
enum { NO_REGISTERS = 0 };
void qemu_plugin_register_vcpu_tb_trans_cb(uint64_t id, on_translated *call);
void qemu_plugin_register_vcpu_tb_exec_cb(struct qemu_plugin_tb *tb, on_executed *call, int flags, void *data);
void qemu_plugin_register_vcpu_insn_exec_cb(struct qemu_plugin_insn *insn, on_executed *call, int flags, void *data);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *tb);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *tb, size_t at);
const void *qemu_plugin_insn_data(const struct qemu_plugin_insn *insn);
size_t qemu_plugin_insn_size(const struct qemu_plugin_insn *insn);
uint64_t qemu_plugin_insn_vaddr(const struct qemu_plugin_insn *insn);
void *qemu_plugin_insn_haddr(const struct qemu_plugin_insn *insn);

/* The place of Xen, and the image of a Linux kernel without its modules. */
static const uint64_t XEN = 0xffff82d040000000, XEN_END = 0xffff82d080000000;
static const uint64_t KERNEL = 0xffffffff80000000, KERNEL_END = 0xffffffffc0000000;

enum owner { UNKNOWN, NO_ONE, DOM0, GUEST, OWNERS };

struct block {
	uint64_t at;    /* as the machine addresses it */
	uint64_t place; /* of its first instruction in this process, as QEMU has the machine's memory there */
	uint64_t length;
	bool is_xen;
	uint64_t times[OWNERS];
	struct block *next, *newer;
};

struct page {
	uint64_t number;
	enum owner owner;
	struct page *next;
};

enum { BUCKETS = 1 << 20, SWITCH_MOST = 1 << 16 };
static struct block *blocks[BUCKETS], *newest;
static struct page *pages[BUCKETS];
static FILE *out;
static uint64_t at_switch, at_idle;
/*
 * Who runs; UNKNOWN from a switch on until it shows, and the blocks that were executed meanwhile.
 */
static enum owner runs = NO_ONE;
static struct block *switching[SWITCH_MOST];
static size_t switching_len;
/* Of dom0's kernel, from its addresses to this process's. */
static uint64_t dom0_distance;

static void *room(size_t size)
{
	void *made = calloc(1, size);
	if (!made) {
		fputs("count: no memory\n", stderr);
		exit(1);
	}
	return made;
}

static size_t bucket(uint64_t key)
{
	return (key * 0x9e3779b97f4a7c15u) >> 44;
}

static struct page *page_of(const struct block *block)
{
	uint64_t number = block->place >> 12;
	struct page **slot = &pages[bucket(number)], *page = *slot;
	while (page && page->number != number)
		page = page->next;
	if (!page) {
		page = room(sizeof *page);
		page->number = number;
		page->next = *slot;
		*slot = page;
	}
	return page;
}

/* Whose this is, which is not Xen's; UNKNOWN where that is not known yet. */
static enum owner owner_of(const struct block *block)
{
	if (!block->place)
		return UNKNOWN;
	struct page *page = page_of(block);
	if (page->owner != UNKNOWN)
		return page->owner;
	if (block->at >= KERNEL && block->at < KERNEL_END) {
		uint64_t distance = block->place - block->at;
		if (!dom0_distance)
			dom0_distance = distance;
		page->owner = distance == dom0_distance ? DOM0 : GUEST;
	} else if (runs == DOM0 || runs == GUEST) {
		page->owner = runs;
	}
	return page->owner;
}

/* What was executed since the switch is theirs. */
static void settle(enum owner owner)
{
	runs = owner;
	for (size_t i = 0; i < switching_len; i++)
		switching[i]->times[owner]++;
	switching_len = 0;
}

static void executed(unsigned int cpu, void *data)
{
	struct block *block = data;
	(void)cpu;
	if (!block->is_xen) {
		if (runs == UNKNOWN) {
			enum owner owner = owner_of(block);
			if (owner != UNKNOWN)
				settle(owner);
		}
	} else if (block->at == at_switch) {
		runs = UNKNOWN;
	} else if (block->at == at_idle) {
		settle(NO_ONE);
	}
	if (runs != UNKNOWN)
		block->times[runs]++;
	else if (switching_len < SWITCH_MOST)
		switching[switching_len++] = block;
	else
		fputs("count: a switch that does not show whose; blocks are not counted\n", stderr);
}

static void marked(unsigned int cpu, void *data)
{
	uint64_t sums[OWNERS] = { 0 };
	(void)cpu;
	(void)data;
	for (struct block *b = newest; b; b = b->newer)
		for (int owner = 0; owner < OWNERS; owner++)
			sums[owner] += b->times[owner] * b->length;
	fprintf(out, "reading %" PRIu64 " %" PRIu64 "\n", sums[GUEST], sums[NO_ONE]);
	for (struct block *b = newest; b; b = b->newer) {
		for (int owner = DOM0; owner <= GUEST; owner++)
			if (b->times[owner])
				fprintf(out, "%" PRIx64 " %c %" PRIu64 "\n", b->at, "xdyg"[(owner == GUEST) * 2 + !b->is_xen],
					b->times[owner] * b->length);
		memset(b->times, 0, sizeof b->times);
	}
	fflush(out);
}

/* `movabs $"PREGRANT", %register`. */
static bool is_mark(const struct qemu_plugin_insn *insn)
{
	const unsigned char *bytes = qemu_plugin_insn_data(insn);
	return qemu_plugin_insn_size(insn) == 10 && (bytes[0] & 0xf8) == 0x48 && (bytes[1] & 0xf8) == 0xb8 &&
	       !memcmp(bytes + 2, "PREGRANT", 8);
}

static void translated(uint64_t id, struct qemu_plugin_tb *tb)
{
	const struct qemu_plugin_insn *first = qemu_plugin_tb_get_insn(tb, 0);
	uint64_t at = qemu_plugin_insn_vaddr(first), place = (uintptr_t)qemu_plugin_insn_haddr(first);
	uint64_t length = qemu_plugin_tb_n_insns(tb);
	struct block **slot = &blocks[bucket(at ^ place << 16 ^ length)], *block = *slot;
	(void)id;
	while (block && (block->at != at || block->place != place || block->length != length))
		block = block->next;
	if (!block) {
		block = room(sizeof *block);
		*block = (struct block){ .at = at, .place = place, .length = length, .next = *slot, .newer = newest };
		block->is_xen = at >= XEN && at < XEN_END;
		*slot = newest = block;
	}
	if (!block->is_xen)
		owner_of(block);
	qemu_plugin_register_vcpu_tb_exec_cb(tb, executed, NO_REGISTERS, block);
	for (size_t i = 0; i < length; i++) {
		struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(tb, i);
		if (is_mark(insn))
			qemu_plugin_register_vcpu_insn_exec_cb(insn, marked, NO_REGISTERS, NULL);
	}
}

EXPORT int qemu_plugin_install(uint64_t id, const void *info, int argc, char **argv)
{
	(void)info;
	for (int i = 0; i < argc; i++) {
		if (!strncmp(argv[i], "out=", 4))
			out = fopen(argv[i] + 4, "w");
		else if (!strncmp(argv[i], "switch=", 7))
			at_switch = strtoull(argv[i] + 7, NULL, 16);
		else if (!strncmp(argv[i], "idle=", 5))
			at_idle = strtoull(argv[i] + 5, NULL, 16);
	}
	if (!out || !at_switch || !at_idle) {
		fputs("count: out=FILE, switch=ADDRESS and idle=ADDRESS are wanted\n", stderr);
		return 1;
	}
	qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
	return 0;
}
