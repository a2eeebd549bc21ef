// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0
/* What a guest may do wrong with its keys, states and events, and when it goes. */
#include <linux/kthread.h>
#include <linux/slab.h>

#include "front.h"

static const char *xsa_332_391_events_without_end(struct front *front)
{
	unsigned int k, polls_before, spurious = atomic_read(&channel_spurious), events = atomic_read(&channel_events);
	const char *wrong = front_sends(front);

	polls_before = atomic_read(&polls);
	for (k = 0; k < 10000; k++)
		channel_send(front->port);
	/* Each has its EOI before the next; one that brings nothing is said to be spurious. */
	if (!wrong && atomic_read(&channel_spurious) - spurious + 200 < atomic_read(&channel_events) - events)
		wrong = "events that bring nothing are not said to be spurious";
	if (!wrong && atomic_read(&polls) - polls_before > 2 * 10000)
		wrong = "an event causes polls without end";
	return wrong;
}

/* Connects with keys that are wrong, and sees that nothing is there. */
static const char *refused(struct front *front)
{
	const char *wrong = NULL;
	unsigned int mapped = table_mapped;

	front_state(front, XenbusStateConnected);
	if (!within_a_minute(front_back_state(front) >= XenbusStateClosing))
		wrong = "a vif is connected that cannot be";
	if (!wrong && !within_a_minute(table_mapped <= mapped))
		wrong = "a page stays mapped";
	return wrong;
}

static const char *xsa_371_connects_that_fail_half_way(struct front *front)
{
	static const char *const keys[] = { "tx-ring-ref", "rx-ring-ref", "event-channel" };
	static const char *const values[] = { "2000", "18446744073709551616", "-1", "x", "" };
	const char *wrong = NULL;
	unsigned int k, i;

	for (k = 0; !wrong && k < ARRAY_SIZE(keys); k++) {
		for (i = 0; !wrong && i < ARRAY_SIZE(values); i++) {
			unsigned int mapped = table_mapped, channels = channels_bound;

			wrong = front_begin(front);
			store_write(front->front_dir, keys[k], "%s", values[i]);
			wrong = wrong ?: refused(front);
			front_close(front);
			front_remove(front);
			if (!wrong && (table_mapped != mapped || channels_bound != channels))
				wrong = "a page stays mapped, or a channel bound";
		}
	}
	return wrong;
}

/* A ring that is granted for reading alone, and one page for both rings. */
static const char *rings_that_cannot_be_rings(struct front *front)
{
	const char *wrong = NULL;
	unsigned int k;

	for (k = 0; !wrong && k < 2; k++) {
		wrong = front_begin(front);
		store_write(front->front_dir, "rx-ring-ref", "%u", k ? front->tx : front->pages[0]);
		wrong = wrong ?: refused(front);
		front_close(front);
		front_remove(front);
	}
	return wrong;
}

/* The driver's device goes at each step of the handshake. */
static const char *xsa_465_removal_at_each_state(struct front *front)
{
	const char *wrong = NULL;
	unsigned int k;

	for (k = 0; !wrong && k < 6; k++) {
		front_renew(front);
		if (k < 3 && front_probe(front))
			return "the driver does not take the vif";
		switch (k) {
		case 1:
			within_a_minute(front_back_state(front) == XenbusStateInitWait);
			break;
		case 2:
			within_a_minute(front_back_state(front) == XenbusStateInitWait);
			front_keys(front);
			front_state(front, XenbusStateConnected);
			break;
		case 3:
			wrong = front_connect(front);
			break;
		case 4:
			/* With requests that are not answered, and frames that wait. */
			wrong = front_connect(front);
			front_host_sends(front, 60);
			channel_send(front->port);
			break;
		case 5:
			wrong = front_connect(front);
			front_state(front, XenbusStateClosing);
			break;
		}
		front_remove(front);
	}
	return wrong;
}

/* One round after another leaves what one leaves, which is seen behind each rule. */
static const char *xsa_350_connects_without_end(struct front *front)
{
	const char *wrong = NULL;
	unsigned int k, mapped = table_mapped, channels = channels_bound;
	s64 memory = atomic64_read(&selftest_memory);

	for (k = 0; !wrong && k < 10; k++) {
		front_renew(front);
		wrong = front_connect(front) ?: front_sends(front);
		front_close(front);
		front_remove(front);
		if (!wrong && (table_mapped != mapped || channels_bound != channels ||
			       atomic64_read(&selftest_memory) != memory))
			wrong = "a round leaves something";
	}
	return wrong;
}

static const char *xsa_349_states_without_end(struct front *front)
{
	static const unsigned int states[] = { 5, 4, 6, 1, 3, 4, 7, 8, 2, 0, 99 };
	const char *wrong = front_connect(front);
	unsigned int k;

	for (k = 0; !wrong && k < 3000; k++)
		front_state(front, states[k % ARRAY_SIZE(states)]);
	/* It is served now and again, and others are. */
	wrong = wrong ?: front_sends(neighbour) ?: front_receives(neighbour);
	front_close(front);
	front_remove(front);
	return wrong;
}

/* A fault, and before the back has closed the front's own end; events go on. */
static const char *xsa_374_a_fault_and_a_disconnect(struct front *front)
{
	front_publish_index(front, front->tx_prod + 1000);
	front_state(front, XenbusStateClosing);
	front_publish_index(front, front->tx_prod + 5000);
	channel_send(front->port);
	front_state(front, XenbusStateClosed);
	channel_send(front->port);
	return within_a_minute(front_back_state(front) == XenbusStateClosed) ? NULL : "the back is not at state 6";
}

/* Events come while the driver binds and closes their channels. */
static int storm(void *data)
{
	struct front *front = data;

	while (!kthread_should_stop()) {
		channel_send(front->port);
		usleep_range(20, 100);
	}
	return 0;
}

static const char *xsa_331_channels_that_close_under_load(struct front *front)
{
	struct task_struct *thread = kthread_run(storm, front, "pregrant-storm");
	const char *wrong = IS_ERR(thread) ? "no thread" : NULL;
	unsigned int k;

	for (k = 0; !wrong && k < 10; k++) {
		front_renew(front);
		wrong = front_connect(front) ?: front_sends(front);
		front_close(front);
		front_remove(front);
	}
	if (!IS_ERR(thread))
		kthread_stop(thread);
	return wrong;
}

/*
 * The stack has a frame while others come, and for longer than there is the vif: its bytes stay as
 * they are.
 */
static const char *a_frame_that_outlives_its_vif(struct front *front)
{
	const char *wrong = front_connect(front);
	u8 *bytes = kmalloc(FRONT_SENT, GFP_KERNEL | __GFP_NOFAIL);
	struct sk_buff *skb;
	unsigned int k;

	front->keeps = true;
	wrong = wrong ?: front_sends(front);
	front->keeps = false;
	memcpy(bytes, front->last, FRONT_SENT);
	for (k = 0; k < 3; k++)
		table_fill(front->pages[k], 100 + k, 3);
	for (k = 0; !wrong && k < 3 * PREGRANT_BURSTS; k++)
		wrong = front_sends(front);
	front_close(front);
	front_remove(front);
	skb = front->kept;
	front->kept = NULL;
	if (!wrong && (!skb || skb_copy_bits(skb, 0, front->last, FRONT_SENT) || memcmp(front->last, bytes, FRONT_SENT)))
		wrong = "a frame changes that the stack still has";
	kfree_skb(skb);
	kfree(bytes);
	return wrong;
}

/* A frame goes on to a vif in the poll in which it came, which is the back's own, too (XSA-424). */
static const char *xsa_424_a_frame_goes_on_in_its_poll(struct front *front)
{
	const char *wrong = NULL;
	unsigned int k;

	for (k = 0; !wrong && k < 2; k++) {
		struct front *to = k ? front : neighbour;
		u32 before = to->rx_cons;

		front->sends_on = to;
		wrong = front_sends(front);
		front->sends_on = NULL;
		memcpy(to->wanted, front->last, front->last_len);
		wrong = wrong ?: front_taken(to, front->last_len, true);
		front_post(to, to->rx_cons - before);
	}
	return wrong;
}

/* More than the toolstack's `rate` allows, as fast as answers come. */
static const char *more_frames_than_its_rate(struct front *front)
{
	/* One credit is there at first, and the first period may end at once. */
	enum { CREDIT = 20000, FRAMES = 80, PERIODS = FRAMES * FRONT_SENT / CREDIT - 2 };
	u64 began = ktime_get_ns(), unlimited, period = 100 * NSEC_PER_MSEC;
	const char *wrong = NULL;
	unsigned int k;

	for (k = 0; !wrong && k < FRAMES; k++)
		wrong = front_sends(neighbour);
	/* So that this machine sends four times as much where there is no limit. */
	unlimited = ktime_get_ns() - began;
	period = max(period, 4 * unlimited / PERIODS);
	store_write(front->back_dir, "rate", "%u,%llu", CREDIT, period / NSEC_PER_USEC);
	wrong = wrong ?: front_connect(front);
	began = ktime_get_ns();
	for (k = 0; !wrong && k < FRAMES; k++)
		wrong = front_sends(front);
	if (!wrong && ktime_get_ns() - began < PERIODS * (period - NSEC_PER_USEC))
		wrong = "more comes than its rate allows";
	front_close(front);
	front_remove(front);
	return wrong;
}

/* One queue more than the back offers, of which each has all keys; and counts that are none. */
static const char *queues_that_are_none(struct front *front)
{
	static const char *const counts[] = { NULL, "65", "4294967297", "0" };
	grant_ref_t rings[2] = { table_grant(front->of, false), table_grant(front->of, false) };
	char *offered, path[40];
	const char *wrong = NULL;
	unsigned int k, queue, most = 0;

	for (k = 0; !wrong && k < ARRAY_SIZE(counts); k++) {
		unsigned int channels = channels_bound;

		wrong = front_begin(front);
		offered = store_read(front->back_dir, "multi-queue-max-queues", NULL);
		if (!IS_ERR(offered) && (kstrtouint(offered, 10, &most) || !most))
			wrong = wrong ?: "the back offers no queue";
		if (!IS_ERR(offered))
			kfree(offered);
		for (queue = 0; !wrong && queue <= most; queue++) {
			snprintf(path, sizeof(path), "%s/queue-%u", front->front_dir, queue);
			store_write(path, "tx-ring-ref", "%u", queue ? rings[0] : front->tx);
			store_write(path, "rx-ring-ref", "%u", queue ? rings[1] : front->rx);
			store_write(path, "event-channel", "%u", front->port);
		}
		if (counts[k])
			store_write(front->front_dir, "multi-queue-num-queues", "%s", counts[k]);
		else
			store_write(front->front_dir, "multi-queue-num-queues", "%u", most + 1);
		wrong = wrong ?: refused(front);
		front_close(front);
		front_remove(front);
		if (!wrong && channels_bound != channels)
			wrong = "a channel stays bound";
	}
	for (k = 0; k < ARRAY_SIZE(rings); k++)
		if (!table_end(rings[k]))
			wrong = wrong ?: "a ring stays mapped";
	return wrong;
}

const struct rule rules_of_vif[] = {
	RULE(more_frames_than_its_rate, .is_alone = true),
	RULE(queues_that_are_none, .is_alone = true),
	RULE(xsa_332_391_events_without_end),
	RULE(xsa_371_connects_that_fail_half_way, .is_alone = true),
	RULE(rings_that_cannot_be_rings, .is_alone = true),
	RULE(xsa_465_removal_at_each_state, .is_alone = true),
	RULE(xsa_350_connects_without_end, .is_alone = true),
	RULE(xsa_349_states_without_end, .is_alone = true),
	RULE(xsa_374_a_fault_and_a_disconnect, .ends = true),
	RULE(xsa_331_channels_that_close_under_load, .is_alone = true),
	RULE(a_frame_that_outlives_its_vif, .is_alone = true),
	RULE(xsa_424_a_frame_goes_on_in_its_poll),
	{},
};
