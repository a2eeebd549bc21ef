// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0
/*
 * What a guest may do wrong with pages that it shares for longer than a frame, and with the control
 * ring, by which it asks for that: staging, gref mappings, persistent grants, a hash.
 */
#include <linux/slab.h>

#include "front.h"

#define BUFFER 2048
#define BUFFERS 16
#define BUFFER_PAGES (BUFFERS / 2)

struct staging_entry {
	__le16 id;
	__le32 gref;
	__le16 offset;
} __packed;

/* Two buffers a page, of pages that are at once those for ordinary frames. */
static grant_ref_t staging_list(struct front *front)
{
	grant_ref_t list = table_grant(front->of, true);
	struct staging_entry *entry = table_page(list);
	unsigned int k;

	for (k = 0; k < BUFFERS; k++)
		entry[k] = (struct staging_entry) { k, front->pages[8 + k / 2], k % 2 * BUFFER };
	return list;
}

static const char *staging_connect(struct front *front, grant_ref_t list)
{
	store_write(front->front_dir, "feature-staging-grants", "1");
	store_write(front->front_dir, "staging-grants-revision", "3");
	store_write(front->front_dir, "tx-data-ref0", "%u", list);
	store_write(front->front_dir, "tx-data-len", "%u", BUFFER);
	return front_connect(front);
}

static bool staging_is_active(struct front *front)
{
	char *value = store_read(front->back_dir, "staging-grants-active", NULL);
	bool is_active = !IS_ERR(value) && (!strcmp(value, "1") || !strcmp(value, "tx"));

	if (!IS_ERR(value))
		kfree(value);
	return is_active;
}

/* A frame whose bytes are in a buffer. */
static struct xen_netif_tx_request in_buffer(u16 id, u16 offset, u16 size)
{
	return (struct xen_netif_tx_request) { .offset = offset, .id = id, .size = size };
}

static const char *staged(struct front *front, u16 id, u16 offset, u16 size, s16 wanted)
{
	const u8 *buffer = table_page(front->pages[8 + id % BUFFERS / 2]) + id % 2 * BUFFER;
	struct xen_netif_tx_request request = in_buffer(id, offset, size);
	const char *wrong = front_asks(front, &request, wanted);

	if (wrong || wanted != XEN_NETIF_RSP_OKAY)
		return wrong;
	return memcmp(front->last, buffer + offset, size) ? "it has other bytes" : NULL;
}

static void end(struct front *front)
{
	front_close(front);
	front_remove(front);
	front_renew(front);
}

static const char *staging_lists_of_no_use(struct front *front)
{
	const char *wrong = NULL;
	unsigned int k;

	for (k = 0; !wrong && k < 7; k++) {
		grant_ref_t list = staging_list(front);
		struct staging_entry *entry = table_page(list);

		switch (k) {
		case 0:
			entry[5].offset = BUFFER - 1; /* overlaps the one before */
			break;
		case 1:
			entry[5].offset = BUFFER + 1; /* past its page */
			break;
		case 2:
			entry[5].id = 6;
			break;
		case 3:
			entry[5].gref = NO_GRANT;
			break;
		case 4:
			entry[0].gref = 0; /* the list ends before it begins */
			break;
		case 5:
			entry[5].gref = neighbour->pages[0]; /* another guest's */
			break;
		}
		wrong = staging_connect(front, k < 6 ? list : NO_GRANT);
		if (!wrong && staging_is_active(front))
			wrong = "a staging list is accepted that is wrong";
		wrong = wrong ?: front_sends(front) ?: front_receives(front);
		end(front);
		if (!table_end(list))
			wrong = wrong ?: "a list stays mapped";
	}
	return wrong;
}

/* With the list as it was read when the vif connected, whatever it is now. */
static const char *staging_ids_and_lengths(struct front *front)
{
	grant_ref_t list = staging_list(front);
	s16 twice[2] = {};
	const char *wrong = staging_connect(front, list);

	if (!wrong && !staging_is_active(front))
		wrong = "a staging list is not accepted";
	memset(table_page(list), 0xff, PAGE_SIZE);
	wrong = wrong ?: staged(front, 3, 0, 100, XEN_NETIF_RSP_OKAY);
	wrong = wrong ?: staged(front, BUFFERS, 0, 100, XEN_NETIF_RSP_ERROR);
	wrong = wrong ?: staged(front, 0xffff, 0, 100, XEN_NETIF_RSP_ERROR);
	wrong = wrong ?: staged(front, 3, 0, BUFFER + 1, XEN_NETIF_RSP_ERROR);
	wrong = wrong ?: staged(front, 3, BUFFER - 10, 100, XEN_NETIF_RSP_ERROR);
	wrong = wrong ?: staged(front, 4, 0, BUFFER, XEN_NETIF_RSP_OKAY);
	if (!wrong) {
		struct xen_netif_tx_request request = in_buffer(7, 0, 100);

		front_put(front, (const u32 *)&request);
		front_put(front, (const u32 *)&request);
		front_publish(front);
		wrong = front_answers(front, 2, twice);
		if (!wrong && twice[1] != XEN_NETIF_RSP_ERROR)
			wrong = "one buffer is taken twice at once";
	}
	wrong = wrong ?: front_sends(front);
	end(front);
	if (!table_end(list))
		wrong = wrong ?: "a list stays mapped";
	return wrong;
}

/* `persistent`: the guest's frames are in more pages than it may have mapped. */
static const char *xsa_300_more_pages_than_a_guest_may_have(struct front *front)
{
	enum { MORE = 700 };
	grant_ref_t *more = kcalloc(MORE, sizeof(*more), GFP_KERNEL | __GFP_NOFAIL);
	unsigned int k, most = 0;
	const char *wrong;
	s16 status;

	store_write(front->front_dir, "feature-persistent", "1");
	wrong = front_connect(front);
	for (k = 0; !wrong && k < MORE; k++) {
		struct xen_netif_tx_request request = { .size = 60 };

		more[k] = table_grant(front->of, false);
		request.gref = more[k];
		front_put(front, (u32 *)&request);
		front_publish(front);
		wrong = front_answers(front, 1, &status);
		if (!wrong && status != XEN_NETIF_RSP_OKAY)
			wrong = "a frame fails for which no page can be mapped";
		most = max(most, table_mapped);
		if (k == 300 && !wrong)
			wrong = front_sends(neighbour) ?: front_receives(neighbour);
	}
	if (!wrong && most > pregrant_guest_pages)
		wrong = "a guest has more pages mapped than it may";
	if (!wrong && most < 32)
		wrong = "no page stays mapped";
	end(front);
	for (k = 0; k < MORE; k++)
		if (more[k] && !table_end(more[k]))
			wrong = wrong ?: "a page stays mapped";
	kfree(more);
	return wrong;
}

static const char *control_connect(struct front *front)
{
	front->ctrl = table_grant(front->of, false);
	front_renew(front);
	return front_connect(front);
}

static const char *xsa_39_an_index_of_the_control_ring(struct front *front)
{
	const char *wrong = control_connect(front);

	if (!wrong) {
		smp_store_release((u32 *)table_page(front->ctrl), 100000);
		channel_send(front->ctrl_port);
		wrong = front_ended(front);
	}
	end(front);
	return wrong;
}

/* Asks on the control ring; the answer must have this status. */
static const char *asked(struct front *front, u16 type, u32 a, u32 b, u32 c, u32 status)
{
	u32 *ring = table_page(front->ctrl), prod = ring[REQ_PROD];
	u32 *slot = &ring[SLOTS_AT / 4 + prod % 128 * 4];

	slot[0] = type << 16 | (prod & 0xffff);
	slot[1] = a;
	slot[2] = b;
	slot[3] = c;
	smp_store_release(&ring[REQ_PROD], prod + 1);
	channel_send(front->ctrl_port);
	if (!within_a_minute(READ_ONCE(ring[RSP_PROD]) == prod + 1))
		return "a control request is not answered";
	if (slot[0] != (type << 16 | (prod & 0xffff)) || slot[3] != c)
		return "an answer to a control request is another's, or writes more than itself";
	return slot[1] == status ? NULL : "a control request is not answered as it should be";
}

#define OKAY XEN_NETIF_CTRL_STATUS_SUCCESS
#define INVALID XEN_NETIF_CTRL_STATUS_INVALID_PARAMETER
#define TOO_LONG XEN_NETIF_CTRL_STATUS_BUFFER_OVERFLOW

static const char *xsa_270_a_hash_table_and_what_is_beside_it(struct front *front)
{
	const char *wrong = control_connect(front);
	grant_ref_t page = front->pages[0], zeroes = table_grant(front->of, true);

	wrong = wrong ?: asked(front, 99, 0, 0, 0, XEN_NETIF_CTRL_STATUS_NOT_SUPPORTED);
	wrong = wrong ?: asked(front, XEN_NETIF_CTRL_TYPE_SET_HASH_ALGORITHM, 9, 0, 0, INVALID);
	wrong = wrong ?: asked(front, XEN_NETIF_CTRL_TYPE_SET_HASH_ALGORITHM, 1, 0, 0, OKAY);
	wrong = wrong ?: asked(front, XEN_NETIF_CTRL_TYPE_SET_HASH_FLAGS, 0xffffffff, 0, 0, INVALID);
	wrong = wrong ?: asked(front, XEN_NETIF_CTRL_TYPE_SET_HASH_KEY, page, 41, 0, TOO_LONG);
	wrong = wrong ?: asked(front, XEN_NETIF_CTRL_TYPE_SET_HASH_KEY, NO_GRANT, 40, 0, INVALID);
	wrong = wrong ?: asked(front, XEN_NETIF_CTRL_TYPE_SET_HASH_MAPPING_SIZE, 129, 0, 0, INVALID);
	wrong = wrong ?: asked(front, XEN_NETIF_CTRL_TYPE_SET_HASH_MAPPING_SIZE, 128, 0, 0, OKAY);
	wrong = wrong ?: asked(front, XEN_NETIF_CTRL_TYPE_SET_HASH_MAPPING, zeroes, 128, 0, OKAY);
	wrong = wrong ?: asked(front, XEN_NETIF_CTRL_TYPE_SET_HASH_MAPPING, zeroes, 1, 128, INVALID);
	wrong = wrong ?: asked(front, XEN_NETIF_CTRL_TYPE_SET_HASH_MAPPING, zeroes, 128, 1, INVALID);
	wrong = wrong ?: asked(front, XEN_NETIF_CTRL_TYPE_SET_HASH_MAPPING, zeroes, 2, 0xffffffff, INVALID);
	wrong = wrong ?: asked(front, XEN_NETIF_CTRL_TYPE_SET_HASH_MAPPING, zeroes, 2000, 0, TOO_LONG);
	/* Queues that there are not. */
	wrong = wrong ?: asked(front, XEN_NETIF_CTRL_TYPE_SET_HASH_MAPPING, page, 16, 0, INVALID);
	wrong = wrong ?: front_sends(front) ?: front_receives(front);
	end(front);
	if (!table_end(zeroes))
		wrong = wrong ?: "a page of the control ring stays mapped";
	return wrong;
}

#define GREF_ADD 9
#define GREF_DEL 10

struct gref_entry {
	u32 gref;
	u16 flags, status;
};

/* All or nothing, within the guest's bound, and what is mapped goes with the vif. */
static const char *gref_mappings_of_no_use(struct front *front)
{
	grant_ref_t list = table_grant(front->of, false), more[300];
	struct gref_entry *entry = table_page(list);
	unsigned int k, mapped;
	const char *wrong = control_connect(front);

	for (k = 0; k < ARRAY_SIZE(more); k++) {
		more[k] = table_grant(front->of, true);
		entry[k] = (struct gref_entry) { more[k], 1 };
	}
	mapped = table_mapped;
	wrong = wrong ?: asked(front, GREF_ADD, 0, list, 0, INVALID);
	wrong = wrong ?: asked(front, GREF_ADD, 0, list, 513, INVALID);
	wrong = wrong ?: asked(front, GREF_ADD, 7, list, 1, INVALID);
	wrong = wrong ?: asked(front, GREF_ADD, 0, NO_GRANT, 1, INVALID);
	entry[9].gref = NO_GRANT;
	wrong = wrong ?: asked(front, GREF_ADD, 0, list, 16, INVALID);
	entry[9].gref = more[8];
	wrong = wrong ?: asked(front, GREF_ADD, 0, list, 16, INVALID);
	entry[9].gref = 0;
	wrong = wrong ?: asked(front, GREF_ADD, 0, list, 16, INVALID);
	/* To be written to, and granted for reading. */
	entry[9] = (struct gref_entry) { more[9], 0 };
	wrong = wrong ?: asked(front, GREF_ADD, 0, list, 16, INVALID);
	entry[9].flags = 1;
	/* More than the guest may have mapped. */
	wrong = wrong ?: asked(front, GREF_ADD, 0, list, ARRAY_SIZE(more), INVALID);
	if (!wrong && table_mapped != mapped)
		wrong = "a page is mapped by a request that is refused";
	wrong = wrong ?: asked(front, GREF_ADD, 0, list, 16, OKAY);
	if (!wrong && table_mapped != mapped + 16)
		wrong = "pages are not mapped";
	wrong = wrong ?: asked(front, GREF_ADD, 0, list, 1, INVALID);
	wrong = wrong ?: asked(front, GREF_DEL, 0, list, 1, OKAY);
	if (!wrong && !within_a_minute(table_mapped == mapped + 15))
		wrong = "a page stays mapped that the guest asks back";
	wrong = wrong ?: front_sends(front) ?: front_receives(front);
	end(front);
	for (k = 0; k < ARRAY_SIZE(more); k++)
		if (!table_end(more[k]))
			wrong = wrong ?: "a page stays mapped";
	if (!table_end(list))
		wrong = wrong ?: "a list stays mapped";
	return wrong;
}

const struct rule rules_of_shared[] = {
	RULE(staging_lists_of_no_use, .is_alone = true),
	RULE(staging_ids_and_lengths, .is_alone = true),
	RULE(gref_mappings_of_no_use, .is_alone = true),
	RULE(xsa_300_more_pages_than_a_guest_may_have, .is_alone = true),
	RULE(xsa_39_an_index_of_the_control_ring, .is_alone = true),
	RULE(xsa_270_a_hash_table_and_what_is_beside_it, .is_alone = true),
	{},
};
