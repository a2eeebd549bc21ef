// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0
/*
 * Memory pressure. A device keeps the pages of a connection that is over for the next one, which
 * may be long in coming: a driver domain that is gone. They are given up where the kernel needs
 * memory, but for those that a back still has.
 *
 *   count: pages that are granted and not in use     scan: control gives them up
 *
 * Not in the scan itself: it may run within an allocation of the front's. What a connection uses
 * stays until it ends, but for RX pages that come and go (pool.c). With each turn control takes a
 * reserve: so a turn a second, no more.
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
	if (time_before(jiffies, READ_ONCE(dev->shrinks_at)))
		return SHRINK_STOP;
	WRITE_ONCE(dev->shrinks_at, jiffies + HZ);
	WRITE_ONCE(dev->shrinks, true);
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

/* Without one its pages are kept. */
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

/* Without one its pages are kept. */
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
