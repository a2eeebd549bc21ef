// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0
/*
 * Tests control.c with a front, a clock and a work queue of the test's own: it waits for no back,
 * runs no more often than its share, gives up pages before it needs memory, and makes another front
 * if the guest was restored and xenbus called no resume function.
 */
#include <linux/etherdevice.h>
#include <linux/freezer.h>
#include <linux/delay.h>
#include <linux/jiffies.h>
#include <linux/rtnetlink.h>
#include <linux/slab.h>

#include "driver.h"

/* The clock, the time at which control is due next, and what control did. */
static unsigned long clock, next;
static bool is_queued, is_freezing, is_closed, is_missing;
static unsigned int sleeps, fronts_made, freed, steps, abandoned, released;

static bool test_queue(unsigned long delay, bool moves)
{
	if (is_queued && !moves)
		return false;
	is_queued = true;
	next = clock + delay;
	return true;
}

struct workqueue_struct *pregrant_control;

struct pregrant_front *pregrant_front_new(struct pregrant_device *dev, u16 back, const struct pregrant_settings *settings)
{
	static u8 front;

	fronts_made++;
	is_closed = false;
	return (struct pregrant_front *)&front;
}

void pregrant_front_free(struct pregrant_front *front)
{
	freed++;
}

/* A step takes time, since xenstore may answer late. */
bool pregrant_front_step(struct pregrant_front *front)
{
	steps++;
	clock += msecs_to_jiffies(8);
	return false;
}

void pregrant_front_abandon(struct pregrant_front *front)
{
	abandoned++;
}

bool pregrant_front_is_closed(const struct pregrant_front *front)
{
	return is_closed;
}

void pregrant_front_release_idle(struct pregrant_front *front)
{
	released++;
}

int pregrant_front_turn(struct pregrant_front *front)
{
	return 0;
}

bool pregrant_front_is_live(const struct pregrant_front *front)
{
	return false;
}

u64 pregrant_front_begins_at(const struct pregrant_front *front)
{
	return 0;
}

u64 pregrant_front_kept_pages(const struct pregrant_front *front)
{
	return 7;
}

void pregrant_front_close(struct pregrant_front *front)
{
}

void pregrant_front_stop_queues(struct pregrant_front *front)
{
}

int pregrant_backend_find(struct pregrant_device *dev)
{
	return is_missing ? -ENOENT : 0;
}

bool pregrant_backend_moved(struct pregrant_device *dev)
{
	return is_missing;
}

void pregrant_note_state(struct pregrant_device *dev, u32 state)
{
	dev->xbdev->state = state;
}

bool pregrant_is_gone(struct pregrant_device *dev)
{
	return false;
}

void pregrant_pool_control(struct pregrant_device *dev, bool shrinks)
{
}

void pregrant_pool_show(struct pregrant_device *dev)
{
}

/* No queue is started here. */
#define pregrant_channels_connect(dev) do { } while (0)
#define pregrant_front_slots(front, slots) memset(slots, 0, sizeof(slots))
#define pregrant_front_start_queues(front) 0u
#define pregrant_front_takes(front) 0u
#define pregrant_front_tx(front, queue) NULL
#define pregrant_front_rx(front, queue) NULL
#define pregrant_front_path(front, settings, to) do { } while (0)
#define pregrant_tx_sends_on(tx) false
#define pregrant_queue_drop_kept(queue) do { } while (0)
#define pregrant_multicast(dev, all) do { } while (0)
#define pregrant_backend_seen(dev) do { } while (0)
#define pregrant_backend_look(dev) do { } while (0)

#define jiffies clock
#define msleep(ms) (sleeps++, clock += msecs_to_jiffies(ms))
#define freezing(task) is_freezing
#define queue_delayed_work(wq, work, delay) test_queue(delay, false)
#define mod_delayed_work(wq, work, delay) test_queue(delay, true)

#include "control.c"

/* Runs control when it is due. */
static void run(struct pregrant_device *dev)
{
	if (time_before(clock, next))
		clock = next;
	is_queued = false;
	pregrant_control_work(&dev->work.work);
}

/* A backend never unmaps: the front is freed after CLOSE_MS, and control never sleeps. */
static const char *waits(struct pregrant_device *dev)
{
	unsigned long began = clock, took;
	unsigned int fronts = fronts_made, runs = 0;

	WRITE_ONCE(dev->restart_queues, 1);
	pregrant_wake_control(dev);
	while (fronts_made == fronts && is_queued && runs++ < 5000)
		run(dev);
	took = jiffies_to_msecs(clock - began);
	if (sleeps)
		return "control waits for a back, and the kernel for control";
	if (fronts_made == fronts || freed != fronts)
		return "a front does not restart";
	if (took < CLOSE_MS || took > CLOSE_MS + 200)
		return "the time that a back has is not counted";
	return NULL;
}

/* The caller of remove waits, but not while the kernel freezes tasks. */
static const char *ends(struct pregrant_device *dev)
{
	unsigned long began = clock;

	pregrant_end(dev);
	if (!sleeps || dev->front || jiffies_to_msecs(clock - began) > CLOSE_MS + 200)
		return "a device that goes does not wait for its time";
	sleeps = 0;
	began = clock;
	is_freezing = true;
	if (pregrant_begin(dev))
		return "no front";
	pregrant_end(dev);
	is_freezing = false;
	if (sleeps || dev->front || jiffies_to_msecs(clock - began) > 200)
		return "a device that goes waits though the kernel freezes";
	return NULL;
}

/* A backend causes events without end: control keeps its pace. */
static const char *paced_runs(struct pregrant_device *dev)
{
	unsigned long until;
	unsigned int runs = 0;

	clock += 1000 * HZ;
	for (until = clock + 10 * HZ; time_before(clock, until); clock++) {
		pregrant_wake_control(dev);
		if (time_after(next, clock))
			continue;
		run(dev);
		runs++;
	}
	if (runs > RUNS_AT_ONCE + 10 * HZ / RUN_SHARE + 1 || runs < RUNS_AT_ONCE)
		return "control runs as often as a back would have it";
	clock += 1000 * HZ;
	pregrant_wake_control(dev);
	return next == clock ? NULL : "a device that was left alone waits";
}

/*
 * Memory is short: a device gives up pages before its step, which may have to wait for memory. That
 * must not need more than a page, which may be refused.
 */
static const char *shortage(struct pregrant_device *dev)
{
	unsigned int before = steps;
	u64 asked;

	set_bit(PREGRANT_EV_SHRINK, &dev->events);
	pk_fail(PREGRANT_HEAP, 0, ~0ull);
	run(dev);
	asked = pk_asked();
	pk_fail(0, 0, 0);
	if (asked)
		return "control asks for more than a page where memory is short";
	return steps > before && released ? NULL : "a device keeps its pages though memory is short";
}

/* The guest is saved and continues: in place, or restored with a back that xenbus has not found. */
static const char *saved(struct pregrant_device *dev)
{
	unsigned int fronts = fronts_made;

	dev->running = true;
	pregrant_suspend(dev);
	if (dev->running || !is_queued)
		return "a device that is suspended goes on";
	dev->xbdev->otherend = "somewhere";
	is_closed = true;
	run(dev);
	if (dev->suspended || fronts_made != fronts)
		return "a device that was not saved after all begins afresh";
	pregrant_suspend(dev);
	dev->xbdev->otherend = NULL;
	dev->xbdev->state = XenbusStateConnected;
	is_missing = true;
	is_closed = true;
	run(dev);
	if (dev->xbdev->state != XenbusStateInitialising)
		return "the toolstack's state of a device that was restored counts as another's";
	if (dev->front || !abandoned || !is_queued || time_before(clock, next - LOOK_PAUSE))
		return "grants of before are used where xenbus found no back";
	run(dev);
	is_missing = false;
	run(dev);
	if (!dev->front || fronts_made != fronts + 1)
		return "a back that comes later is not looked for";
	/* xenbus still has no back, and the front has found its own. */
	pregrant_suspend(dev);
	is_closed = true;
	run(dev);
	return fronts_made == fronts + 1 ? NULL : "a front that found its back itself ends at each save";
}

static const char *play(struct pregrant_device *dev)
{
	if (pregrant_begin(dev))
		return "no front";
	return waits(dev) ?: ends(dev) ?: paced_runs(dev) ?: shortage(dev) ?: saved(dev);
}

int pregrant_selftest_control(void)
{
	struct net_device *netdev = alloc_etherdev(sizeof(struct pregrant_device));
	struct xenbus_device *xbdev = kzalloc(sizeof(*xbdev), GFP_KERNEL);
	const char *wrong = "no memory";
	struct pregrant_device *dev;

	if (!netdev || !xbdev)
		goto out;
	dev = netdev_priv(netdev);
	dev->netdev = netdev;
	dev->xbdev = xbdev;
	dev->state_watch = (struct pregrant_watch *)dev; /* this key is not watched */
	dev->bound = true;
	clock = dev->runs_until = 5;
	mutex_init(&dev->control);
	mutex_init(&dev->queues_lock);
	ratelimit_state_init(&dev->log_limit, DEFAULT_RATELIMIT_INTERVAL, DEFAULT_RATELIMIT_BURST);
	wrong = play(dev);
out:
	if (wrong)
		pr_warn("pregrant: selftest of control failed: %s\n", wrong);
	kfree(xbdev);
	if (netdev)
		free_netdev(netdev);
	return wrong ? -EINVAL : 0;
}
