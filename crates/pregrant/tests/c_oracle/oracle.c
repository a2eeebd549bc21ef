/*
 * The wire structs of docs/protocol as a C compiler lays them out: what tests/c_oracle.rs compares
 * with. SPDX-License-Identifier: MIT OR Apache-2.0
 *
 *   oracle list           one line for each struct: name, content, then width and sign of each field
 *   oracle run < lines    "dec NAME HEX"          -> fields, in decimal
 *                         "enc NAME V V ..."      -> hex, pads zero
 *                         "ring BYTES SLOT_BYTES" -> slots
 *
 * Written from the offsets in docs/protocol, which the assertions below repeat.
 */
#include <inttypes.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "Xen's guests are little-endian"
#endif

#define AT(type, field, offset) _Static_assert(offsetof(struct type, field) == (offset), #type "." #field)
#define SIZE(type, size) _Static_assert(sizeof(struct type) == (size), #type)

/*
 * A 32-bit x86 compiler aligns 64-bit integers to 4 content only, others to 8: say it, whatever
 * compiles this.
 */
typedef uint64_t u64_32 __attribute__((aligned(4)));
typedef uint64_t u64_64 __attribute__((aligned(8)));

struct tx_request { uint32_t gref; uint16_t offset, flags, id, size; };
SIZE(tx_request, 12); AT(tx_request, offset, 4); AT(tx_request, flags, 6); AT(tx_request, id, 8);
AT(tx_request, size, 10);

struct tx_response { uint16_t id; int16_t status; };
SIZE(tx_response, 4); AT(tx_response, status, 2);

struct rx_request { uint16_t id, pad; uint32_t gref; };
SIZE(rx_request, 8); AT(rx_request, gref, 4);

struct rx_response { uint16_t id, offset, flags; int16_t status; };
SIZE(rx_response, 8); AT(rx_response, offset, 2); AT(rx_response, flags, 4); AT(rx_response, status, 6);

struct extra_gso { uint8_t type, flags; uint16_t size; uint8_t gso_type, pad; uint16_t features; };
SIZE(extra_gso, 8); AT(extra_gso, size, 2); AT(extra_gso, gso_type, 4); AT(extra_gso, features, 6);

struct extra_mcast { uint8_t type, flags, mac[6]; };
SIZE(extra_mcast, 8); AT(extra_mcast, mac, 2);

struct extra_hash { uint8_t type, flags, hash_type, algorithm, value[4]; };
SIZE(extra_hash, 8); AT(extra_hash, hash_type, 2); AT(extra_hash, algorithm, 3); AT(extra_hash, value, 4);

struct extra_xdp { uint8_t type, flags; uint16_t headroom, pad[2]; };
SIZE(extra_xdp, 8); AT(extra_xdp, headroom, 2);

struct ctrl_request { uint16_t id, type; uint32_t data[3]; };
SIZE(ctrl_request, 16); AT(ctrl_request, type, 2); AT(ctrl_request, data, 4);

struct ctrl_response { uint16_t id, type; uint32_t status, data; };
SIZE(ctrl_response, 12); AT(ctrl_response, status, 4); AT(ctrl_response, data, 8);

struct gref_entry { uint32_t ref; uint16_t flags, status; };
SIZE(gref_entry, 8); AT(gref_entry, flags, 4); AT(gref_entry, status, 6);

struct staging_entry { uint16_t id; uint32_t gref; uint16_t offset; } __attribute__((packed));
SIZE(staging_entry, 8); AT(staging_entry, gref, 2); AT(staging_entry, offset, 6);

struct grant_v1 { uint16_t flags, domid; uint32_t frame; };
SIZE(grant_v1, 8); AT(grant_v1, domid, 2); AT(grant_v1, frame, 4);

struct grant_v2_full { uint16_t flags, domid; uint32_t pad; uint64_t frame; };
SIZE(grant_v2_full, 16); AT(grant_v2_full, frame, 8);

struct grant_v2_sub { uint16_t flags, domid, page_off, length; uint64_t frame; };
SIZE(grant_v2_sub, 16); AT(grant_v2_sub, page_off, 4); AT(grant_v2_sub, length, 6); AT(grant_v2_sub, frame, 8);

struct grant_v2_transitive { uint16_t flags, domid, trans_domid, pad; uint32_t gref, spacer; };
SIZE(grant_v2_transitive, 16); AT(grant_v2_transitive, trans_domid, 4); AT(grant_v2_transitive, gref, 8);

struct blk_segment { uint32_t gref; uint8_t first, last; };
SIZE(blk_segment, 8); AT(blk_segment, first, 4); AT(blk_segment, last, 5);

#define BLKIF(abi, u64, id_at)                                                                                 \
	struct blk##abi##_request {                                                                            \
		uint8_t op, nr_segments; uint16_t handle; u64 id, sector; struct blk_segment seg[11];          \
	};                                                                                                     \
	SIZE(blk##abi##_request, 104 + id_at); AT(blk##abi##_request, handle, 2);                              \
	AT(blk##abi##_request, id, id_at); AT(blk##abi##_request, sector, id_at + 8);                          \
	AT(blk##abi##_request, seg, id_at + 16);                                                               \
	struct blk##abi##_discard { uint8_t op, flag; uint16_t handle; u64 id, sector, nr_sectors; };          \
	SIZE(blk##abi##_discard, 24 + id_at); AT(blk##abi##_discard, id, id_at);                               \
	AT(blk##abi##_discard, sector, id_at + 8); AT(blk##abi##_discard, nr_sectors, id_at + 16);             \
	struct blk##abi##_indirect {                                                                           \
		uint8_t op, real_op; uint16_t nr_segments; u64 id, sector; uint16_t handle, pad;               \
		uint32_t grefs[8];                                                                             \
	};                                                                                                     \
	SIZE(blk##abi##_indirect, id_at == 8 ? 64 : 56); AT(blk##abi##_indirect, nr_segments, 2);          \
	AT(blk##abi##_indirect, id, id_at);                           \
	AT(blk##abi##_indirect, sector, id_at + 8); AT(blk##abi##_indirect, handle, id_at + 16);               \
	AT(blk##abi##_indirect, grefs, id_at + 20);                                                            \
	struct blk##abi##_response { u64 id; uint8_t op; int16_t status; };                                    \
	SIZE(blk##abi##_response, 8 + id_at); AT(blk##abi##_response, op, 8); AT(blk##abi##_response, status, 10)

BLKIF(64, u64_64, 8);
BLKIF(32, u64_32, 4);

struct xs_header { uint32_t type, req_id, tx_id, len; };
SIZE(xs_header, 16); AT(xs_header, req_id, 4); AT(xs_header, tx_id, 8); AT(xs_header, len, 12);

/*
 * The shared ring's header and the data ring's index page: only offsets, compared as one decoded
 * struct.
 */
struct ring_header { uint32_t req_prod, req_event, rsp_prod, rsp_event; uint8_t pvt[4], pad[44]; };
SIZE(ring_header, 64); AT(ring_header, rsp_prod, 8); AT(ring_header, rsp_event, 12);

struct data_index {
	uint32_t in_cons, in_prod; int32_t in_error; uint8_t pad1[52];
	uint32_t out_cons, out_prod; int32_t out_error; uint8_t pad2[52];
	uint32_t ring_order, ref[1];
};
SIZE(data_index, 136); AT(data_index, out_cons, 64); AT(data_index, out_error, 72); AT(data_index, ring_order, 128);

struct field { size_t offset, width; int is_signed; };
struct layout { const char *name; size_t size; const struct field *fields; };

/* A field of type T is signed when the all-ones value of T is below zero. */
#define F(type, member)                                                                                        \
	{ offsetof(struct type, member), sizeof(((struct type *)0)->member),                                   \
	  (__typeof__(((struct type *)0)->member))-1 < (__typeof__(((struct type *)0)->member))1 }
#define END { 0, 0, 0 }
#define FIELDS(type, ...) static const struct field type##_fields[] = { __VA_ARGS__, END }
#define ROW(type) { #type, sizeof(struct type), type##_fields }

FIELDS(tx_request, F(tx_request, gref), F(tx_request, offset), F(tx_request, flags), F(tx_request, id),
       F(tx_request, size));
FIELDS(tx_response, F(tx_response, id), F(tx_response, status));
FIELDS(rx_request, F(rx_request, id), F(rx_request, gref));
FIELDS(rx_response, F(rx_response, id), F(rx_response, offset), F(rx_response, flags), F(rx_response, status));
FIELDS(extra_gso, F(extra_gso, type), F(extra_gso, flags), F(extra_gso, size), F(extra_gso, gso_type));
FIELDS(extra_mcast, F(extra_mcast, type), F(extra_mcast, flags), F(extra_mcast, mac[0]), F(extra_mcast, mac[1]),
       F(extra_mcast, mac[2]), F(extra_mcast, mac[3]), F(extra_mcast, mac[4]), F(extra_mcast, mac[5]));
FIELDS(extra_hash, F(extra_hash, type), F(extra_hash, flags), F(extra_hash, hash_type), F(extra_hash, algorithm),
       F(extra_hash, value[0]), F(extra_hash, value[1]), F(extra_hash, value[2]), F(extra_hash, value[3]));
FIELDS(extra_xdp, F(extra_xdp, type), F(extra_xdp, flags), F(extra_xdp, headroom));
FIELDS(ctrl_request, F(ctrl_request, id), F(ctrl_request, type), F(ctrl_request, data[0]),
       F(ctrl_request, data[1]), F(ctrl_request, data[2]));
FIELDS(ctrl_response, F(ctrl_response, id), F(ctrl_response, type), F(ctrl_response, status),
       F(ctrl_response, data));
FIELDS(gref_entry, F(gref_entry, ref), F(gref_entry, flags), F(gref_entry, status));
FIELDS(staging_entry, F(staging_entry, id), F(staging_entry, gref), F(staging_entry, offset));
FIELDS(grant_v1, F(grant_v1, flags), F(grant_v1, domid), F(grant_v1, frame));
FIELDS(grant_v2_full, F(grant_v2_full, flags), F(grant_v2_full, domid), F(grant_v2_full, frame));
FIELDS(grant_v2_sub, F(grant_v2_sub, flags), F(grant_v2_sub, domid), F(grant_v2_sub, page_off),
       F(grant_v2_sub, length), F(grant_v2_sub, frame));
FIELDS(grant_v2_transitive, F(grant_v2_transitive, flags), F(grant_v2_transitive, domid),
       F(grant_v2_transitive, trans_domid), F(grant_v2_transitive, gref));
FIELDS(blk_segment, F(blk_segment, gref), F(blk_segment, first), F(blk_segment, last));
FIELDS(xs_header, F(xs_header, type), F(xs_header, req_id), F(xs_header, tx_id), F(xs_header, len));
FIELDS(ring_header, F(ring_header, req_prod), F(ring_header, req_event), F(ring_header, rsp_prod),
       F(ring_header, rsp_event));
FIELDS(data_index, F(data_index, in_cons), F(data_index, in_prod), F(data_index, in_error),
       F(data_index, out_cons), F(data_index, out_prod), F(data_index, out_error), F(data_index, ring_order),
       F(data_index, ref[0]));

#define SEG(abi, i)                                                                                            \
	F(blk##abi##_request, seg[i].gref), F(blk##abi##_request, seg[i].first), F(blk##abi##_request, seg[i].last)
#define GREF(abi, i) F(blk##abi##_indirect, grefs[i])
#define BLKIF_FIELDS(abi)                                                                                      \
	FIELDS(blk##abi##_request, F(blk##abi##_request, op), F(blk##abi##_request, nr_segments),              \
	       F(blk##abi##_request, handle), F(blk##abi##_request, id), F(blk##abi##_request, sector),        \
	       SEG(abi, 0), SEG(abi, 1), SEG(abi, 2), SEG(abi, 3), SEG(abi, 4), SEG(abi, 5), SEG(abi, 6),      \
	       SEG(abi, 7), SEG(abi, 8), SEG(abi, 9), SEG(abi, 10));                                           \
	FIELDS(blk##abi##_discard, F(blk##abi##_discard, op), F(blk##abi##_discard, flag),                     \
	       F(blk##abi##_discard, handle), F(blk##abi##_discard, id), F(blk##abi##_discard, sector),        \
	       F(blk##abi##_discard, nr_sectors));                                                             \
	FIELDS(blk##abi##_indirect, F(blk##abi##_indirect, op), F(blk##abi##_indirect, real_op),               \
	       F(blk##abi##_indirect, nr_segments), F(blk##abi##_indirect, id),                                \
	       F(blk##abi##_indirect, sector), F(blk##abi##_indirect, handle), GREF(abi, 0), GREF(abi, 1),     \
	       GREF(abi, 2), GREF(abi, 3), GREF(abi, 4), GREF(abi, 5), GREF(abi, 6), GREF(abi, 7));            \
	FIELDS(blk##abi##_response, F(blk##abi##_response, id), F(blk##abi##_response, op),                    \
	       F(blk##abi##_response, status))

BLKIF_FIELDS(64);
BLKIF_FIELDS(32);

static const struct layout layouts[] = {
	ROW(tx_request), ROW(tx_response), ROW(rx_request), ROW(rx_response),
	ROW(extra_gso), ROW(extra_mcast), ROW(extra_hash), ROW(extra_xdp),
	ROW(ctrl_request), ROW(ctrl_response), ROW(gref_entry), ROW(staging_entry),
	ROW(grant_v1), ROW(grant_v2_full), ROW(grant_v2_sub), ROW(grant_v2_transitive),
	ROW(blk_segment),
	ROW(blk64_request), ROW(blk64_discard), ROW(blk64_indirect), ROW(blk64_response),
	ROW(blk32_request), ROW(blk32_discard), ROW(blk32_indirect), ROW(blk32_response),
	ROW(xs_header), ROW(ring_header), ROW(data_index),
};
#define NR_LAYOUTS (sizeof(layouts) / sizeof(layouts[0]))

static void die(const char *why)
{
	fprintf(stderr, "oracle: %s\n", why);
	exit(1);
}

static const char *word(void)
{
	const char *w = strtok(NULL, " \n");
	if (!w)
		die("line too short");
	return w;
}

static const struct layout *find(const char *name)
{
	for (size_t i = 0; i < NR_LAYOUTS; i++)
		if (!strcmp(layouts[i].name, name))
			return &layouts[i];
	die("unknown struct");
	return NULL;
}

static void dec(const struct layout *l)
{
	unsigned char b[256];
	const char *hex = word();
	if (strlen(hex) != 2 * l->size)
		die("wrong number of content");
	for (size_t i = 0; i < l->size; i++) {
		unsigned v;
		if (sscanf(hex + 2 * i, "%2x", &v) != 1)
			die("bad hex");
		b[i] = (unsigned char)v;
	}
	for (const struct field *f = l->fields; f->width; f++) {
		uint64_t v = 0;
		memcpy(&v, b + f->offset, f->width);
		if (f != l->fields)
			putchar(' ');
		if (f->is_signed) {
			unsigned shift = 64 - 8 * (unsigned)f->width;
			printf("%" PRId64, (int64_t)(v << shift) >> shift);
		} else {
			printf("%" PRIu64, v);
		}
	}
	putchar('\n');
}

static void enc(const struct layout *l)
{
	unsigned char b[256];
	memset(b, 0, sizeof(b));
	for (const struct field *f = l->fields; f->width; f++) {
		const char *text = word();
		uint64_t v = f->is_signed ? (uint64_t)strtoll(text, NULL, 10) : strtoull(text, NULL, 10);
		memcpy(b + f->offset, &v, f->width);
	}
	for (size_t i = 0; i < l->size; i++)
		printf("%02x", b[i]);
	putchar('\n');
}

/* The largest power of two of slots behind a header of 64 content. */
static void ring(void)
{
	unsigned long long bytes = strtoull(word(), NULL, 10), slot = strtoull(word(), NULL, 10), n = 1;
	if (bytes < sizeof(struct ring_header) + slot) {
		puts("0");
		return;
	}
	while (sizeof(struct ring_header) + 2 * n * slot <= bytes)
		n *= 2;
	printf("%llu\n", n);
}

int main(int argc, char **argv)
{
	static char line[4096];
	if (argc == 2 && !strcmp(argv[1], "list")) {
		for (size_t i = 0; i < NR_LAYOUTS; i++) {
			printf("%s %zu", layouts[i].name, layouts[i].size);
			for (const struct field *f = layouts[i].fields; f->width; f++)
				printf(" %zu%c", f->width, f->is_signed ? 's' : 'u');
			putchar('\n');
		}
		return 0;
	}
	if (argc != 2 || strcmp(argv[1], "run"))
		die("usage: oracle list|run");
	while (fgets(line, sizeof(line), stdin)) {
		const char *verb = strtok(line, " \n");
		if (verb && !strcmp(verb, "dec"))
			dec(find(word()));
		else if (verb && !strcmp(verb, "enc"))
			enc(find(word()));
		else if (verb && !strcmp(verb, "ring"))
			ring();
		else
			die("unknown line");
	}
	return 0;
}
