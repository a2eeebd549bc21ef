// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0
/*
 * Shrinker: a device keeps the granted pages of its last connection for the next one, which may be
 * long in coming. Under memory pressure they are freed, unless the backend still maps them.
 *
 *   count: pages granted and unused     scan: asks control to free them
 *
 * The scan may run inside an allocation of the core, so it frees nothing itself. Pages in use stay
 * until the connection ends, except RX pages of the pool (pool.c). A run of control costs time, so
 * it is asked at most once a second.
 */
#include <linux/gfp.h>
#include <linux/shrinker.h>
#include <linux/slab.h>
#include <linux/version.h>

#include "driver.h"

static unsigned long count(struct pregrant_device *dev)
{
	return READ_ONCE(dev->kept_pages) + pregrant_pool_spare(dev) ?: SHRINK_EMPTY;
}

static unsigned long scan(struct pregrant_device *dev)
{
	if (time_before(jiffies, READ_ONCE(dev->shrink_after)))
		return SHRINK_STOP;
	WRITE_ONCE(dev->shrink_after, jiffies + HZ);
	set_bit(PREGRANT_EV_SHRINK, &dev->events);
	pregrant_wake_control(dev);
	return SHRINK_STOP;
}

#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 7, 0)
static unsigned long count_objects(struct shrinker *shrinker, struct shrink_control *sc)
{
	return count(shrinker->private_data);
}

static unsigned long scan_objects(struct shrinker *shrinker, struct shrink_control *sc)
{
	return scan(shrinker->private_data);
}

/* Without a shrinker the pages are kept. */
void pregrant_shrinker_begin(struct pregrant_device *dev)
{
	dev->shrinker = shrinker_alloc(0, "pregrant");
	if (!dev->shrinker)
		return;
	dev->shrinker->count_objects = count_objects;
	dev->shrinker->scan_objects = scan_objects;
	dev->shrinker->private_data = dev;
	shrinker_register(dev->shrinker);
}

void pregrant_shrinker_end(struct pregrant_device *dev)
{
	if (dev->shrinker)
		shrinker_free(dev->shrinker);
	dev->shrinker = NULL;
}
#else
struct owned {
	struct shrinker shrinker;
	struct pregrant_device *dev;
};

static unsigned long count_objects(struct shrinker *shrinker, struct shrink_control *sc)
{
	return count(container_of(shrinker, struct owned, shrinker)->dev);
}

static unsigned long scan_objects(struct shrinker *shrinker, struct shrink_control *sc)
{
	return scan(container_of(shrinker, struct owned, shrinker)->dev);
}

/* Without a shrinker the pages are kept. */
void pregrant_shrinker_begin(struct pregrant_device *dev)
{
	struct owned *owned = kzalloc(sizeof(*owned), GFP_KERNEL);
	int ret;

	if (!owned)
		return;
	owned->dev = dev;
	owned->shrinker.count_objects = count_objects;
	owned->shrinker.scan_objects = scan_objects;
	owned->shrinker.seeks = DEFAULT_SEEKS;
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 0, 0)
	ret = register_shrinker(&owned->shrinker, "pregrant");
#else
	ret = register_shrinker(&owned->shrinker);
#endif
	if (ret)
		kfree(owned);
	else
		dev->shrinker = &owned->shrinker;
}

void pregrant_shrinker_end(struct pregrant_device *dev)
{
	if (!dev->shrinker)
		return;
	unregister_shrinker(dev->shrinker);
	kfree(container_of(dev->shrinker, struct owned, shrinker));
	dev->shrinker = NULL;
}
#endif
