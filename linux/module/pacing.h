/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0 */
/*
 * The pace of control: a peer can cause its runs. RUNS_AT_ONCE of them need no pause, and later
 * ones the interval RUN_SHARE.
 */
#ifndef PREGRANT_PACING_H
#define PREGRANT_PACING_H

#include <linux/jiffies.h>
#include <linux/minmax.h>

#include "driver.h"

#define RUNS_AT_ONCE 32
#define RUN_SHARE (HZ / 20 ?: 1)

/* Returns the number of jiffies until control may run, at least `delay`. In any context. */
static inline unsigned long paced(const struct pregrant_device *dev, unsigned long delay)
{
	unsigned long now = jiffies, from = READ_ONCE(dev->runs_until) - RUNS_AT_ONCE * RUN_SHARE;

	return time_after(from, now) ? max(delay, from - now) : delay;
}

/* Called with `control` held: counts this run. The count decreases with time. */
static inline void count_run(struct pregrant_device *dev)
{
	unsigned long now = jiffies, until = dev->runs_until;

	WRITE_ONCE(dev->runs_until, (time_after(until, now) ? until : now) + RUN_SHARE);
}

#endif
