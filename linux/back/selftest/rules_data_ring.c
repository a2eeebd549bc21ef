// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0
/*
 * What a guest may do wrong with a data ring: its index page, and places in its area that are none.
 *
 *   index page | 128: order | 132: references: the half for frames to the guest, that for frames from it
 *
 * Of order 1 each half is one page (docs/protocol 4.5).
 */
#include <linux/slab.h>

#include "front.h"

#define DATA_RING 0x0020 /* flag of a request */
#define HALF PAGE_SIZE
#define BIG 65000

struct area {
	grant_ref_t index, in, out;
};

/* Words of the index page. */
static u32 *order_of(const struct area *area)
{
	return table_page(area->index) + 128;
}

static struct area area_new(struct front *front)
{
	struct area area = {
		.index = table_grant(front->of, true),
		.in = table_grant(front->of, false),
		.out = table_grant(front->of, true),
	};
	u32 *order = order_of(&area);

	table_fill(area.out, 3, 7);
	order[0] = 1;
	order[1] = area.in;
	order[2] = area.out;
	return area;
}

static const char *area_connect(struct front *front, grant_ref_t index)
{
	store_write(front->front_dir, "data-ring-ref", "%u", index);
	return front_connect(front);
}

/* That a half is served, which the back says by this word or by `1`. */
static bool is_active(struct front *front, const char *half)
{
	char *value = store_read(front->back_dir, "data-ring-active", NULL);
	bool yes = !IS_ERR(value) && (!strcmp(value, "1") || !strcmp(value, half));

	if (!IS_ERR(value))
		kfree(value);
	return yes;
}

static const char *end(struct front *front, struct area *area)
{
	bool all;

	front_close(front);
	front_remove(front);
	front_renew(front);
	all = table_end(area->index);
	all &= table_end(area->in);
	all &= table_end(area->out);
	return all ? NULL : "a page of the area stays mapped";
}

static const char *data_rings_of_no_use(struct front *front)
{
	const char *wrong = NULL;
	unsigned int k;

	for (k = 0; !wrong && k < 8; k++) {
		struct area area = area_new(front);
		u32 *order = order_of(&area);
		bool tx = false, rx = false;

		switch (k) {
		case 0:
			order[0] = 0;
			break;
		case 1:
			order[0] = 10; /* its references end behind the page */
			break;
		case 2:
			order[0] = 0xffffffff;
			break;
		case 3:
			order[2] = area.in; /* in both halves */
			break;
		case 4:
			order[2] = NO_GRANT;
			rx = true;
			break;
		case 5:
			order[1] = neighbour->room[0]; /* another guest's */
			tx = true;
			break;
		case 6:
			order[1] = area.out; /* to be written to, and granted for reading */
			order[2] = front->pages[0];
			tx = true;
			break;
		case 7:
			order[1] = 0;
			tx = true;
			break;
		}
		wrong = area_connect(front, area.index);
		if (!wrong && (is_active(front, "tx") != tx || is_active(front, "rx") != rx))
			wrong = "a half is served that is wrong, or not served that is right";
		wrong = wrong ?: front_sends(front);
		/* What comes by the area is not in the pages that front_receives() reads. */
		if (!rx)
			wrong = wrong ?: front_receives(front);
		wrong = end(front, &area) ?: wrong;
	}
	return wrong;
}

/* A frame whose bytes are at this place of the area. */
static const char *placed(struct front *front, const struct area *area, struct xen_netif_tx_request request, s16 wanted)
{
	unsigned int before = front->arrived, k;
	const u8 *out = table_page(area->out);
	const char *wrong;
	s16 status;

	request.flags |= DATA_RING;
	front_put(front, (u32 *)&request);
	front_publish(front);
	wrong = front_answers(front, 1, &status);
	if (wrong || status != wanted)
		return wrong ?: "a frame in the area is not answered as it should be";
	if (wanted != XEN_NETIF_RSP_OKAY)
		return front->arrived == before ? NULL : "a frame that is wrong arrives";
	if (!within_a_minute(smp_load_acquire(&front->arrived) != before))
		return "a frame in the area does not arrive";
	for (k = 0; k < request.size; k++)
		if (front->last[k] != out[(request.gref + k) % HALF])
			return "it has other bytes";
	return front->last_len == request.size ? NULL : "it has another length";
}

/* With the page as it was read when the vif connected, whatever it is now. */
static const char *data_ring_places_that_are_none(struct front *front)
{
	static const struct xen_netif_tx_request bad[] = {
		{ .gref = 1, .size = 100 }, { .gref = 63, .size = 100 }, { .gref = HALF, .size = 100 },
		{ .gref = 0xffffffc0, .size = 100 }, { .gref = 0x80000000, .size = 100 }, { .size = HALF + 1 },
		{ .size = BIG }, { .size = 100, .offset = 1 }, { .size = 100, .offset = 64 },
	};
	struct area area = area_new(front);
	const char *wrong = area_connect(front, area.index);
	unsigned int k;

	if (!wrong && !is_active(front, "1"))
		wrong = "a data ring is not accepted";
	memset(table_page(area.index), 0xff, PAGE_SIZE);
	for (k = 0; !wrong && k < ARRAY_SIZE(bad); k++) {
		wrong = placed(front, &area, bad[k], XEN_NETIF_RSP_ERROR);
		wrong = wrong ?: placed(front, &area, (struct xen_netif_tx_request){ .gref = 64, .size = 100 }, XEN_NETIF_RSP_OKAY);
	}
	/* Over the end of the area, and all of it. */
	wrong = wrong ?: placed(front, &area, (struct xen_netif_tx_request){ .gref = HALF - 64, .size = 1500 }, XEN_NETIF_RSP_OKAY);
	wrong = wrong ?: placed(front, &area, (struct xen_netif_tx_request){ .gref = 128, .size = HALF }, XEN_NETIF_RSP_OKAY);
	wrong = wrong ?: front_sends(front);
	return end(front, &area) ?: wrong;
}

/* In a slot that is not a frame's first, or in one that is followed by another. */
static const char *data_ring_slots_that_go_on(struct front *front)
{
	static const u16 lens[] = { 700, 100 };
	struct slots *slots = kzalloc(sizeof(*slots), GFP_KERNEL | __GFP_NOFAIL);
	struct area area = area_new(front);
	const char *wrong = area_connect(front, area.index);
	unsigned int k;

	for (k = 0; !wrong && k < 2; k++) {
		unsigned int before = front->arrived;
		s16 statuses[2];

		front_frame(front, slots, lens, ARRAY_SIZE(lens), 0);
		request(slots, k)->flags |= DATA_RING;
		request(slots, k)->gref = 0;
		front_send(front, slots);
		wrong = front_answers(front, 2, statuses);
		if (!wrong && (statuses[0] == XEN_NETIF_RSP_OKAY || front->arrived != before))
			wrong = "a frame arrives that is half in the area";
		wrong = wrong ?: front_sends(front);
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
