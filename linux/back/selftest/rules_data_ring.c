// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0
/*
 * What a guest may do wrong with a data ring: its index page, and places in its area that are none.
 *
 *   index page | 128: order | 132: references: the half for frames to the guest, that for frames from it
 *
 * Of order 1 each half is one page, of order 2 two (docs/protocol 4.5).
 */
#include <linux/slab.h>

#include "front.h"

#define DATA_RING 0x0020 /* flag of a request */
#define BIG 65000

/* Of each half two pages, of which an area of order 1 has the first. */
struct area {
	grant_ref_t index, in[2], out[2];
	unsigned int order;
};

/* The index page's order, and behind it the references. */
static u32 *order_of(const struct area *area)
{
	return table_page(area->index) + 128;
}

static struct area area_new(struct front *front, unsigned int order)
{
	struct area area = { .index = table_grant(front->of, true), .order = order };
	u32 *to = order_of(&area);
	unsigned int k;

	*to++ = order;
	for (k = 0; k < 2; k++) {
		area.in[k] = table_grant(front->of, false);
		area.out[k] = table_grant(front->of, true);
		table_fill(area.out[k], 3 + k, 7);
	}
	for (k = 0; k < order; k++)
		*to++ = area.in[k];
	for (k = 0; k < order; k++)
		*to++ = area.out[k];
	return area;
}

/* What the back says of its halves must be this. */
static const char *area_connect(struct front *front, grant_ref_t index, const char *active)
{
	const char *wrong;
	char *value;

	store_write(front->front_dir, "data-ring-ref", "%u", index);
	store_write(front->back_dir, "data-ring-active", "as it was");
	wrong = front_connect(front);
	value = store_read(front->back_dir, "data-ring-active", NULL);
	if (!wrong && (IS_ERR(value) || strcmp(value, active)))
		wrong = "a half is served that is wrong, or not served that is right";
	if (!IS_ERR(value))
		kfree(value);
	return wrong;
}

static const char *end(struct front *front, struct area *area)
{
	unsigned int k;
	bool all;

	front_close(front);
	front_remove(front);
	front_renew(front);
	all = table_end(area->index);
	for (k = 0; k < 2; k++) {
		all &= table_end(area->in[k]);
		all &= table_end(area->out[k]);
	}
	return all ? NULL : "a page of the area stays mapped";
}

/* A frame whose bytes are at this place of the area. */
static const char *placed(struct front *front, const struct area *area, struct xen_netif_tx_request request, s16 wanted)
{
	const char *wrong;
	unsigned int k;

	request.flags |= DATA_RING;
	wrong = front_asks(front, &request, wanted);
	if (wrong || wanted != XEN_NETIF_RSP_OKAY)
		return wrong;
	for (k = 0; k < request.size; k++) {
		unsigned int at = (request.gref + k) % (area->order * PAGE_SIZE);
		const u8 *page = table_page(area->out[at / PAGE_SIZE]);

		if (front->last[k] != page[at % PAGE_SIZE])
			return "it has other bytes";
	}
	return NULL;
}

static const char *well_placed(struct front *front, const struct area *area, u32 place, u16 size)
{
	return placed(front, area, (struct xen_netif_tx_request){ .gref = place, .size = size }, XEN_NETIF_RSP_OKAY);
}

static const char *data_rings_of_no_use(struct front *front)
{
	static const char *const active[] = { "0", "0", "0", "0", "rx", "tx", "tx", "tx", "0", "0", "rx", "tx", "0" };
	const char *wrong = NULL;
	unsigned int k;

	for (k = 0; !wrong && k < ARRAY_SIZE(active); k++) {
		struct area area = area_new(front, k < 10 ? 1 : 2);
		u32 *order = order_of(&area);

		switch (k) {
		case 0:
			order[0] = 0;
			break;
		case 1:
			order[0] = 10;
			break;
		case 2:
			order[0] = 0xffffffff;
			break;
		case 3:
			order[2] = area.in[0]; /* in both halves */
			break;
		case 4:
			order[2] = NO_GRANT;
			break;
		case 5:
			order[1] = neighbour->room[0]; /* another guest's */
			break;
		case 6:
			order[1] = front->pages[0]; /* to be written to, and granted for reading */
			break;
		case 7:
			order[1] = 0;
			break;
		case 8:
			order[1] = 0;
			order[2] = 0;
			break;
		case 10:
			order[4] = area.out[0]; /* twice in a half */
			break;
		case 11:
			order[2] = 0; /* one page of a half alone */
			break;
		case 12:
			order[0] = 9; /* as much as is offered, and most of it is not granted */
			break;
		}
		wrong = area_connect(front, k == 9 ? NO_GRANT : area.index, active[k]);
		wrong = wrong ?: front_sends(front);
		/* What comes by the area is not in the pages that front_receives() reads. */
		if (strcmp(active[k], "rx"))
			wrong = wrong ?: front_receives(front);
		if (!strcmp(active[k], "tx"))
			wrong = wrong ?: well_placed(front, &area, 64, 100);
		else if (!strcmp(active[k], "0"))
			wrong = wrong ?: placed(front, &area, (struct xen_netif_tx_request){ .gref = NO_GRANT, .size = 100 },
						XEN_NETIF_RSP_ERROR);
		wrong = end(front, &area) ?: wrong;
	}
	return wrong;
}

/* With the page as it was read when the vif connected, whatever it is now. */
static const char *data_ring_places_that_are_none(struct front *front)
{
	static const struct xen_netif_tx_request bad[] = {
		{ .gref = 1, .size = 100 }, { .gref = 63, .size = 100 }, { .gref = PAGE_SIZE, .size = 100 },
		{ .gref = 0xffffffc0, .size = 100 }, { .gref = 0x80000000, .size = 100 }, 
		{ .size = BIG }, { .size = 100, .offset = 1 }, { .size = 100, .offset = 64 },
	};
	const char *wrong = NULL;
	unsigned int order, k;

	for (order = 1; !wrong && order <= 2; order++) {
		struct area area = area_new(front, order);
		u32 all = order * PAGE_SIZE;

		wrong = area_connect(front, area.index, "1");
		memset(table_page(area.index), 0xff, PAGE_SIZE);
		for (k = 0; !wrong && k < ARRAY_SIZE(bad); k++) {
			struct xen_netif_tx_request request = bad[k];

			/* Of an area of two pages this is a place. */
			if (order == 2 && request.gref == PAGE_SIZE)
				request.gref = all;
			wrong = placed(front, &area, request, XEN_NETIF_RSP_ERROR) ?: well_placed(front, &area, 64, 100);
		}
		wrong = wrong ?: placed(front, &area, (struct xen_netif_tx_request){ .size = all + 1 }, XEN_NETIF_RSP_ERROR);
		/* Over the end of the area, and all of it. */
		wrong = wrong ?: well_placed(front, &area, all - 64, 1500) ?: well_placed(front, &area, 128, all);
		wrong = wrong ?: front_sends(front);
		wrong = end(front, &area) ?: wrong;
	}
	return wrong;
}

/* In a slot that is not a frame's first, or in one that is followed by another. */
static const char *data_ring_slots_that_go_on(struct front *front)
{
	static const u16 lens[] = { 700, 100 };
	struct slots *slots = kzalloc(sizeof(*slots), GFP_KERNEL | __GFP_NOFAIL);
	struct area area = area_new(front, 1);
	const char *wrong = area_connect(front, area.index, "1");
	unsigned int k;

	for (k = 0; !wrong && k < 2; k++) {
		unsigned int before = front->arrived;
		s16 statuses[2];

		front_frame(front, slots, lens, ARRAY_SIZE(lens), 0);
		request(slots, k)->flags |= DATA_RING;
		request(slots, k)->gref = 0;
		front_send(front, slots);
		wrong = front_answers(front, 2, statuses);
		if (!wrong && (statuses[0] == XEN_NETIF_RSP_OKAY || statuses[1] == XEN_NETIF_RSP_OKAY))
			wrong = "what is half in the area is not refused";
		wrong = wrong ?: front_sends(front);
		/* The good one alone. */
		if (!wrong && front->arrived != before + 1)
			wrong = "a frame arrives that is half in the area";
	}
	kfree(slots);
	return end(front, &area) ?: wrong;
}

const struct rule rules_of_data_rings[] = {
	RULE(data_rings_of_no_use, .is_alone = true),
	RULE(data_ring_places_that_are_none, .is_alone = true),
	RULE(data_ring_slots_that_go_on, .is_alone = true),
	{},
};
