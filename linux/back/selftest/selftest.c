// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0
/*
 * Plays the rules against the driver, one guest after another, beside one that breaks none. It runs
 * when the driver registers itself; if it fails, loading fails.
 *
 *   guest 5, which breaks a rule --rings, keys, states, events--> the driver, as it is in the module
 *   guest 6, the neighbour       --frames each way, each byte compared--'
 *
 * After each rule: the frame was answered as the rule says, or the vif is closed and says why; the
 * neighbour goes on; no page of the guest stays mapped, no channel bound, no memory of the core
 * allocated, and the log has a line or two.
 */
#include <linux/slab.h>

#include "front.h"

#define BAD 5
#define GOOD 6
/* Lines that a connection may cause: that it is there; an error; what waits at its end. */
#define LINES_MOST 6

atomic64_t selftest_memory = ATOMIC64_INIT(0);
atomic_t selftest_lines = ATOMIC_INIT(0);
struct front *neighbour;

static const char *goes_on(struct front *front)
{
	return front_sends(front) ?: front_receives(front);
}

static const char *play(const struct rule *rule, struct front *front)
{
	unsigned int arrived;
	const char *wrong;

	if (rule->is_alone)
		return rule->play(front);
	wrong = front_connect(front) ?: goes_on(front);
	arrived = front->arrived;
	wrong = wrong ?: rule->play(front);
	if (rule->ends)
		wrong = wrong ?: front_ended(front) ?: front->arrived == arrived ? NULL : "a frame beside a fault arrives";
	else
		wrong = wrong ?: goes_on(front);
	wrong = wrong ?: goes_on(neighbour);
	if (!wrong)
		front_close(front);
	return wrong;
}

/* What is of the driver, and must be as before when a vif has ended. */
struct left {
	unsigned int mapped, channels;
	s64 memory, maps;
};

static struct left left(void)
{
	return (struct left) {
		.mapped = table_mapped,
		.channels = channels_bound,
		.memory = atomic64_read(&selftest_memory),
		.maps = atomic64_read(&pregrant_maps),
	};
}

static const char *is_left(const struct left *before)
{
	struct left after = left();

	if (after.mapped != before->mapped || after.maps != before->maps)
		return "pages of the guest stay mapped";
	if (after.channels != before->channels)
		return "event channels stay bound";
	if (after.memory != before->memory)
		return "memory of the core stays allocated";
	return atomic64_read(&pregrant_maps_lost) ? "a page cannot be unmapped" : NULL;
}

static const char *play_one(const struct rule *rule, unsigned int number)
{
	unsigned int lines = atomic_read(&selftest_lines);
	struct front *front = front_new(BAD, number);
	struct left before = left();
	const char *wrong = play(rule, front);

	table_meanwhile = NULL;
	front_remove(front);
	wrong = wrong ?: is_left(&before);
	front_free(front);
	lines = atomic_read(&selftest_lines) - lines;
	if (!wrong && !rule->is_alone && lines > LINES_MOST)
		wrong = "the guest fills the log";
	wrong = wrong ?: goes_on(neighbour);
	if (wrong)
		pr_warn("pregrant_back: selftest rule %s failed: %s\n", rule->name, wrong);
	else
		pr_info("pregrant_back: selftest rule %s kept: %s, %u line(s)\n", rule->name,
			rule->ends ? "the vif is closed" : "the vif goes on or ends in order", lines);
	return wrong;
}

static const char *play_all(unsigned int *n)
{
	const struct rule *const lists[] = { rules_of_tx, rules_of_rx, rules_of_shared, rules_of_data_rings, rules_of_vif };
	const struct rule *rule;
	const char *wrong = NULL;
	unsigned int k;

	for (k = 0; k < ARRAY_SIZE(lists); k++)
		for (rule = lists[k]; !wrong && rule->name; rule++)
			wrong = play_one(rule, ++*n);
	return wrong;
}

int selftest_begin(struct xenbus_driver *driver)
{
	struct left before = left();
	const char *wrong;
	unsigned int n = 0;

	driver_of_back = driver;
	neighbour = front_new(GOOD, 0);
	wrong = front_connect(neighbour) ?: goes_on(neighbour) ?: play_all(&n);
	front_close(neighbour);
	front_remove(neighbour);
	channels_end();
	wrong = wrong ?: is_left(&before);
	front_free(neighbour);
	if (!wrong && table_granted)
		wrong = "pages of guests are lost";
	if (!wrong && atomic_read(&pregrant_atomic_allocations))
		wrong = "a frame allocates memory of the core";
	pr_info("pregrant_back: selftest %s: %s, %u rules\n", wrong ? "failed" : "passed", wrong ?: "each is kept", n);
	return wrong ? -EINVAL : 0;
}
