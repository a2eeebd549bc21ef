// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0
/*
 * What a guest may do wrong, or unusually, on the ring of what it sends. The rows of
 * docs/threat-model.md say what must come of it.
 */
#include "front.h"

static struct slots slots; /* of one rule at a time */

/* A frame of `n` fragments of `len` bytes. */
static void frame(struct front *front, unsigned int n, u16 len)
{
	u16 lens[RING_SLOTS];
	unsigned int k;

	for (k = 0; k < n; k++)
		lens[k] = len;
	front_frame(front, &slots, lens, n, 0);
}

static const char *answered(struct front *front, s16 status)
{
	front_send(front, &slots);
	return front_answered(front, &slots, status);
}

static const char *arrives(struct front *front, size_t len)
{
	unsigned int before = front->arrived;
	const char *wrong = answered(front, XEN_NETIF_RSP_OKAY);

	if (wrong)
		return wrong;
	if (!within_a_minute(smp_load_acquire(&front->arrived) != before))
		return "a frame that is right does not arrive";
	return front->last_len == len && !memcmp(front->last, front->wanted, len) ? NULL : "it is not as it was sent";
}

static const char *refused(struct front *front)
{
	unsigned int before = front->arrived;

	return answered(front, XEN_NETIF_RSP_ERROR) ?: front->arrived == before ? NULL : "a frame that is wrong arrives";
}

/* The vif must end of it: there is nothing to see on the ring. */
static const char *sent(struct front *front)
{
	front_send(front, &slots);
	return NULL;
}

static const char *xsa_39_an_index_past_the_ring(struct front *front)
{
	front_publish_index(front, front->tx_prod + RING_SLOTS + 1);
	return NULL;
}

static const char *xsa_39_an_index_that_goes_back(struct front *front)
{
	front_publish_index(front, front->tx_prod - 1);
	return NULL;
}

/* What the back has written of its own is not what it goes by. */
static const char *xsa_86_the_back_s_own_index_is_rewritten(struct front *front)
{
	u32 *ring = table_page(front->tx), rsp_prod = ring[RSP_PROD];

	ring[RSP_PROD] += 100;
	frame(front, 1, 60);
	front_send(front, &slots);
	if (!within_a_minute(READ_ONCE(ring[RSP_PROD]) == rsp_prod + 1))
		return "it goes by an index of its own that the guest wrote";
	return front_answers(front, 1, &(s16){ 0 });
}

static const char *xsa_423_432_slots_of_one_byte(struct front *front)
{
	frame(front, 18, 1);
	return arrives(front, 18);
}

static const char *xsa_448_a_fragment_of_no_bytes(struct front *front)
{
	front_frame(front, &slots, (const u16[]){ 200, 0, 100 }, 3, 0);
	return arrives(front, 300);
}

static const char *xsa_432_full_rings_of_copies(struct front *front)
{
	s16 statuses[RING_SLOTS];
	const char *wrong = NULL;
	unsigned int k, round;

	for (round = 0; !wrong && round < 8; round++) {
		/* Frames of eight bytes in eight slots: too short. */
		frame(front, 8, round & 1 ? 1 : 2);
		for (k = 0; k < RING_SLOTS; k++)
			front_put(front, slots.words[k % 8]);
		front_publish(front);
		wrong = front_answers(front, RING_SLOTS, statuses);
		for (k = 0; !wrong && k < RING_SLOTS; k++)
			if (statuses[k] != (round & 1 ? XEN_NETIF_RSP_ERROR : XEN_NETIF_RSP_OKAY))
				wrong = "a full ring is not answered as each of its frames";
	}
	return wrong;
}

static const char *frames_of_20_slots(struct front *front)
{
	frame(front, 20, 100);
	return refused(front);
}

static const char *frames_of_22_slots(struct front *front)
{
	frame(front, 22, 100);
	return sent(front);
}

static const char *a_fragment_longer_than_its_frame(struct front *front)
{
	frame(front, 2, 100);
	request(&slots, 0)->size = 90;
	return refused(front);
}

static const char *a_frame_without_a_header(struct front *front)
{
	const char *wrong;

	frame(front, 1, 13);
	wrong = refused(front);
	frame(front, 1, 0);
	return wrong ?: refused(front);
}

static const char *a_fragment_across_its_page(struct front *front)
{
	frame(front, 1, 60);
	request(&slots, 0)->offset = 4090;
	return sent(front);
}

static const char *a_later_fragment_across_its_page(struct front *front)
{
	frame(front, 2, 100);
	request(&slots, 1)->offset = 4000;
	return sent(front);
}

static const char *more_slots_are_said_than_there_are(struct front *front)
{
	frame(front, 1, 60);
	request(&slots, 0)->flags |= XEN_NETTXF_more_data;
	return sent(front);
}

static const char *an_extra_info_is_said_and_not_there(struct front *front)
{
	frame(front, 1, 60);
	request(&slots, 0)->flags |= XEN_NETTXF_extra_info;
	return sent(front);
}

static const char *extra(struct front *front, u8 type, u8 flags, u16 size, u8 gso, unsigned int n)
{
	frame(front, 1, 60);
	while (n--)
		slots_extra(&slots, type, flags, size, gso);
	return sent(front);
}

static const char *extra_infos_without_end(struct front *front)
{
	return extra(front, XEN_NETIF_EXTRA_TYPE_GSO, XEN_NETIF_EXTRA_FLAG_MORE, 1448, XEN_NETIF_GSO_TYPE_TCPV4, 3);
}

static const char *an_extra_info_of_no_type(struct front *front)
{
	return extra(front, 9, 0, 0, 0, 1);
}

static const char *segments_of_no_bytes(struct front *front)
{
	return extra(front, XEN_NETIF_EXTRA_TYPE_GSO, 0, 0, XEN_NETIF_GSO_TYPE_TCPV4, 1);
}

static const char *segments_of_no_type(struct front *front)
{
	return extra(front, XEN_NETIF_EXTRA_TYPE_GSO, 0, 1448, 9, 1);
}

/* The stack must not be given what it would believe. */
static const char *offloads_of_a_frame_of_no_protocol(struct front *front)
{
	unsigned int before = front->arrived;
	const char *wrong;

	frame(front, 1, 3000);
	request(&slots, 0)->flags |= XEN_NETTXF_csum_blank | XEN_NETTXF_data_validated;
	slots_extra(&slots, XEN_NETIF_EXTRA_TYPE_GSO, 0, 1448, XEN_NETIF_GSO_TYPE_TCPV4);
	front_send(front, &slots);
	wrong = front_answers(front, 2, (s16[2]){});
	return wrong ?: front->arrived == before ? NULL : "a large segment of no protocol arrives";
}

/* A frame of TCP over IPv4, of which each segment would have a byte. */
static const char *large_segments_of_tiny_pieces(struct front *front)
{
	static const u8 head[54] = { [12] = 8, 0, 0x45, 0, 0x0b, 0xaa, [22] = 64, 6, [46] = 0x50 };

	memcpy(table_page(front->pages[0]), head, sizeof(head));
	frame(front, 1, 3000);
	request(&slots, 0)->flags |= XEN_NETTXF_csum_blank | XEN_NETTXF_data_validated;
	slots_extra(&slots, XEN_NETIF_EXTRA_TYPE_GSO, 0, 1, XEN_NETIF_GSO_TYPE_TCPV4);
	return refused(front);
}

static const char *xsa_361_362_365_grants_that_are_none(struct front *front)
{
	unsigned int bad;
	s16 statuses[3];
	const char *wrong = NULL;

	/* None, not given, another guest's. */
	const grant_ref_t grefs[] = { 0, NO_GRANT, neighbour->pages[0] };

	for (bad = 0; !wrong && bad < 3; bad++) {
		frame(front, 3, 1000);
		request(&slots, bad)->gref = grefs[bad];
		front_send(front, &slots);
		wrong = front_answers(front, 3, statuses);
		if (!wrong && statuses[bad] != XEN_NETIF_RSP_ERROR)
			wrong = "a grant that is none is not refused";
		/* What is beside it in the batch. */
		wrong = wrong ?: front_sends(front);
	}
	return wrong;
}

/* Beside those of another frame, in one hypercall. */
static const char *xsa_367_grants_that_are_none_among_others(struct front *front)
{
	unsigned int before = front->arrived, k;
	s16 statuses[RING_SLOTS];
	const char *wrong;

	for (k = 0; k < 60; k++) {
		frame(front, 1, 100);
		if (k % 3 == 1)
			request(&slots, 0)->gref = NO_GRANT;
		front_put(front, slots.words[0]);
	}
	front_publish(front);
	wrong = front_answers(front, 60, statuses);
	for (k = 0; !wrong && k < 60; k++)
		if (statuses[k] != (k % 3 == 1 ? XEN_NETIF_RSP_ERROR : XEN_NETIF_RSP_OKAY))
			wrong = "a grant that is none costs another frame";
	return wrong ?: within_a_minute(smp_load_acquire(&front->arrived) == before + 40) ? NULL : "not all others arrive";
}

/* What the guest does on another processor, while the back copies. */
static struct front *meanwhile_of;

static void rewrite_slots(void)
{
	memset(table_page(meanwhile_of->tx) + SLOTS_AT, 0xff, RING_SLOTS * TX_SLOT);
}

static const char *xsa_155_197_slots_rewritten_while_they_are_served(struct front *front)
{
	unsigned int before = front->arrived, k;
	struct xen_netif_tx_response *response;
	const char *wrong;
	s16 status;

	front_frame(front, &slots, (const u16[]){ 1400, 600, 100 }, 3, 0);
	for (k = 0; k < 3; k++)
		request(&slots, k)->id = 70 + k;
	meanwhile_of = front;
	table_meanwhile = rewrite_slots;
	front_send(front, &slots);
	for (k = 0, wrong = NULL; !wrong && k < 3; k++) {
		response = table_page(front->tx) + SLOTS_AT + front->tx_cons % RING_SLOTS * TX_SLOT;
		wrong = front_answers(front, 1, &status);
		if (!wrong && (status != XEN_NETIF_RSP_OKAY || response->id != 70 + k))
			wrong = "a request is answered that was written after it was read";
	}
	table_meanwhile = NULL;
	if (wrong || !within_a_minute(smp_load_acquire(&front->arrived) != before))
		return wrong ?: "its frame does not arrive";
	return front->last_len == 2100 && !memcmp(front->last, front->wanted, 2100) ? NULL : "its frame is another";
}

static void revoke(void)
{
	grant_ref_t *gref = &meanwhile_of->pages[1];

	if (*gref && table_end(*gref))
		*gref = 0;
}

static const char *a_grant_revoked_while_it_is_used(struct front *front)
{
	s16 statuses[3];
	const char *wrong;

	frame(front, 3, 1000);
	meanwhile_of = front;
	table_meanwhile = revoke;
	front_send(front, &slots);
	wrong = front_answers(front, 3, statuses);
	table_meanwhile = NULL;
	front->pages[1] = table_grant(front->of, true);
	table_fill(front->pages[1], 3 + 13, 7);
	return wrong ?: statuses[1] == XEN_NETIF_RSP_ERROR ? NULL : "a grant that was revoked is not refused";
}

/*
 * The ring is never empty: as soon as the back has taken frames the guest has made others, of which
 * each fails. A poll must end, and others have their turn.
 */
#define ENOUGH 20000
static u64 refills_until;

static void refill(void)
{
	struct front *front = meanwhile_of;
	u32 *ring = table_page(front->tx);

	/* Far beyond what a poll may do: where it does not end by itself this does. */
	if (table_ops >= refills_until)
		return;
	front->tx_cons = READ_ONCE(ring[RSP_PROD]);
	while (front->tx_prod - front->tx_cons < RING_SLOTS)
		front_put(front, slots.words[0]);
	smp_store_release(&ring[REQ_PROD], front->tx_prod);
}

static const char *a_ring_that_is_never_empty(struct front *front)
{
	u32 *ring = table_page(front->tx);
	u64 before = table_ops;
	const char *wrong;

	frame(front, 1, 60);
	request(&slots, 0)->gref = NO_GRANT;
	meanwhile_of = front;
	poll_ops_most = 0;
	refills_until = before + 10 * ENOUGH;
	table_meanwhile = refill;
	front_send(front, &slots);
	wrong = within_a_minute(table_ops - before > ENOUGH) ? NULL : "the ring is not served";
	wrong = wrong ?: front_sends(neighbour) ?: front_receives(neighbour);
	table_meanwhile = NULL;
	/* A batch has 64 frames, and counts as 4 of the 64 of a poll. */
	if (!wrong && poll_ops_most > 16 * 64)
		wrong = "a poll goes on for as long as the guest likes";
	if (!wrong && !within_a_minute(READ_ONCE(ring[RSP_PROD]) == front->tx_prod))
		wrong = "requests are not answered";
	front->tx_cons = front->tx_prod;
	return wrong;
}

static const char *xsa_43_ten_thousand_errors(struct front *front)
{
	unsigned int lines = atomic_read(&selftest_lines), k, round;
	s16 statuses[RING_SLOTS];
	const char *wrong = NULL;

	for (round = 0; !wrong && round < 40; round++) {
		frame(front, 1, 60);
		request(&slots, 0)->gref = NO_GRANT;
		for (k = 0; k < RING_SLOTS; k++)
			front_put(front, slots.words[0]);
		front_publish(front);
		wrong = front_answers(front, RING_SLOTS, statuses);
	}
	return wrong ?: atomic_read(&selftest_lines) - lines <= 1 ? NULL : "each error of the guest is a line of the log";
}

const struct rule rules_of_tx[] = {
	RULE(xsa_39_an_index_past_the_ring, .ends = true),
	RULE(xsa_39_an_index_that_goes_back, .ends = true),
	RULE(xsa_86_the_back_s_own_index_is_rewritten),
	RULE(xsa_423_432_slots_of_one_byte),
	RULE(xsa_448_a_fragment_of_no_bytes),
	RULE(xsa_432_full_rings_of_copies),
	RULE(frames_of_20_slots),
	RULE(frames_of_22_slots, .ends = true),
	RULE(a_fragment_longer_than_its_frame),
	RULE(a_frame_without_a_header),
	RULE(a_fragment_across_its_page, .ends = true),
	RULE(a_later_fragment_across_its_page, .ends = true),
	RULE(more_slots_are_said_than_there_are, .ends = true),
	RULE(an_extra_info_is_said_and_not_there, .ends = true),
	RULE(extra_infos_without_end, .ends = true),
	RULE(an_extra_info_of_no_type, .ends = true),
	RULE(segments_of_no_bytes, .ends = true),
	RULE(segments_of_no_type, .ends = true),
	RULE(offloads_of_a_frame_of_no_protocol),
	RULE(large_segments_of_tiny_pieces),
	RULE(xsa_361_362_365_grants_that_are_none),
	RULE(xsa_367_grants_that_are_none_among_others),
	RULE(xsa_155_197_slots_rewritten_while_they_are_served),
	RULE(a_grant_revoked_while_it_is_used),
	RULE(a_ring_that_is_never_empty),
	RULE(xsa_43_ten_thousand_errors),
	{},
};
