// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0
/*
 * What a guest may do wrong on the ring of what it receives, and how much a host's frames may cost
 * then.
 */
#include <linux/delay.h>

#include "front.h"

/* Frames of 60 bytes, which use up what was posted. */
static const char *use_up(struct front *front)
{
	const char *wrong = NULL;

	while (!wrong && front->rx_cons != front->rx_prod) {
		if (front_host_sends(front, 60))
			return "the interface takes no frame";
		wrong = front_taken(front, 60, true);
	}
	return wrong;
}

static const char *xsa_39_an_index_past_the_ring_of_rx(struct front *front)
{
	const char *wrong = use_up(front);

	front_publish_room(front, front->rx_prod + RING_SLOTS + 1);
	front_host_sends(front, 60);
	return wrong;
}

static const char *xsa_39_an_index_of_rx_that_goes_back(struct front *front)
{
	const char *wrong = use_up(front);

	front_publish_room(front, front->rx_prod - 1);
	front_host_sends(front, 60);
	return wrong;
}

static const char *xsa_361_362_365_pages_for_frames_that_are_none(struct front *front)
{
	/* None, not given, given for reading. */
	grant_ref_t bad[] = { 0, NO_GRANT, front->pages[0] };
	const char *wrong = use_up(front);
	unsigned int k;

	for (k = 0; !wrong && k < ARRAY_SIZE(bad); k++) {
		front_put_room(front, bad[k]);
		front_post(front, 1);
		if (front_host_sends(front, 60) || front_host_sends(front, 60))
			return "the interface takes no frame";
		wrong = front_taken(front, 60, false) ?: front_taken(front, 60, true);
	}
	/* The others go on, and these were only read. */
	if (!wrong && *(u8 *)table_page(front->pages[0]) != 3)
		wrong = "a page is written that was given for reading";
	front_post(front, FRONT_POSTED);
	return wrong;
}

static struct front *meanwhile_of;

static void rewrite_room(void)
{
	struct front *front = meanwhile_of;
	unsigned int k;

	/* All slots name a page that was given for reading, with another id. */
	for (k = 0; k < RING_SLOTS; k++)
		*(u64 *)(table_page(front->rx) + SLOTS_AT + k * RX_SLOT) = (u64)front->pages[0] << 32 | 0x7777;
}

static const char *xsa_155_197_slots_of_rx_rewritten_while_they_are_served(struct front *front)
{
	unsigned int id = front->rx_cons % RING_SLOTS;
	struct xen_netif_rx_response *response = table_page(front->rx) + SLOTS_AT + id * RX_SLOT;
	const char *wrong;

	meanwhile_of = front;
	table_meanwhile = rewrite_room;
	wrong = front_host_sends(front, 60) ? "the interface takes no frame" : front_taken(front, 60, true);
	table_meanwhile = NULL;
	if (!wrong && response->id != id)
		wrong = "a request is answered that was written after it was read";
	/* What it has rewritten was posted: it is answered, as errors. */
	while (!wrong && front->rx_cons != front->rx_prod)
		wrong = front_host_sends(front, 60) ? "the interface takes no frame" : front_taken(front, 60, false);
	front_post(front, FRONT_POSTED);
	return wrong;
}

/* front_taken() looks at what is beside each frame in the guest's pages. */
static const char *xsa_216_376_403_nothing_but_the_frame_in_the_guest_s_pages(struct front *front)
{
	static const u16 lens[] = { 14, 60, 61, 1514, 2048, 2049, 4096, 4097, 9000, 65535 };
	const char *wrong = NULL;
	unsigned int k;

	for (k = 0; !wrong && k < ARRAY_SIZE(lens); k++) {
		u32 before = front->rx_cons;

		if (front_host_sends(front, lens[k]))
			return "the interface takes no frame";
		wrong = front_taken(front, lens[k], true);
		front_post(front, front->rx_cons - before);
	}
	return wrong;
}

/* The guest takes nothing: what waits for it is bounded, and others go on. */
static const char *xsa_392_a_guest_that_takes_no_frames(struct front *front)
{
	struct pregrant_device *dev = dev_get_drvdata(&front->xbdev.dev);
	struct pregrant_queue *queue = &dev->queues[0];
	const char *wrong = use_up(front);
	unsigned int sent, arrived;

	for (sent = 0; !wrong && sent < 4 * PREGRANT_WAIT_FRAMES; sent++)
		if (front_host_sends(front, 60))
			break;
	arrived = READ_ONCE(queue->frames_in) - READ_ONCE(queue->frames_out);
	/* The core has a burst of its own. */
	if (!wrong && (sent > PREGRANT_WAIT_FRAMES + 4 * PREGRANT_BURST_FRAMES || arrived > PREGRANT_WAIT_FRAMES))
		wrong = "what waits for a guest that takes nothing has no bound";
	wrong = wrong ?: front_sends(neighbour) ?: front_receives(neighbour);
	front_post(front, FRONT_POSTED);
	wrong = wrong ?: front_taken(front, 60, true);
	while (!wrong && --sent) {
		if (front->rx_cons == front->rx_prod)
			front_post(front, FRONT_POSTED);
		wrong = front_taken(front, 60, true);
	}
	front_post(front, front->rx_cons + FRONT_POSTED - front->rx_prod);
	return wrong;
}

/* One slot for a frame that needs three: it waits for all of them. */
static const char *xsa_392_a_frame_waits_for_all_of_its_slots(struct front *front)
{
	u32 *ring = table_page(front->rx), before;
	const char *wrong = use_up(front);

	before = READ_ONCE(ring[RSP_PROD]);
	front_post(front, 1);
	if (wrong || front_host_sends(front, 9000))
		return wrong ?: "the interface takes no frame";
	msleep(50);
	if (READ_ONCE(ring[RSP_PROD]) != before)
		return "a frame begins for which there are too few slots";
	wrong = front_sends(neighbour) ?: front_receives(neighbour);
	front_post(front, FRONT_POSTED);
	return wrong ?: front_taken(front, 9000, true);
}

const struct rule rules_of_rx[] = {
	RULE(xsa_39_an_index_past_the_ring_of_rx, .ends = true),
	RULE(xsa_39_an_index_of_rx_that_goes_back, .ends = true),
	RULE(xsa_361_362_365_pages_for_frames_that_are_none),
	RULE(xsa_155_197_slots_of_rx_rewritten_while_they_are_served),
	RULE(xsa_216_376_403_nothing_but_the_frame_in_the_guest_s_pages),
	RULE(xsa_392_a_guest_that_takes_no_frames),
	RULE(xsa_392_a_frame_waits_for_all_of_its_slots),
	{},
};
