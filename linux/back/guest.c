// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0
/*
 * Guests: what the vifs of each share is the number of pages that it may have mapped (XSA-300).
 *
 * A vif that may connect is given what the guest's others do not have or may ask for. Its step is
 * made under the guest's lock, so that no two are given the same. Whatever they ask for, map.c
 * refuses more.
 */
#include <linux/slab.h>

#include "driver.h"

static LIST_HEAD(guests);
static DEFINE_MUTEX(guests_lock);

struct pregrant_guest *pregrant_guest_get(u16 of)
{
	struct pregrant_guest *guest;

	mutex_lock(&guests_lock);
	list_for_each_entry(guest, &guests, list)
		if (guest->of == of)
			goto found;
	guest = kzalloc(sizeof(*guest), GFP_KERNEL);
	if (!guest)
		goto out;
	guest->of = of;
	mutex_init(&guest->steps);
	list_add(&guest->list, &guests);
found:
	guest->users++;
out:
	mutex_unlock(&guests_lock);
	return guest;
}

/* Called when none of the vif's pages is mapped any more. */
void pregrant_guest_put(struct pregrant_guest *guest)
{
	mutex_lock(&guests_lock);
	if (!--guest->users) {
		list_del(&guest->list);
		kfree(guest);
	}
	mutex_unlock(&guests_lock);
}

/* Called with `control` held: makes a step of the vif, which may have what the others leave. */
u32 pregrant_guest_step(struct pregrant_device *dev)
{
	struct pregrant_guest *guest = dev->guest;
	unsigned int others, pages;
	u32 came_to;

	mutex_lock(&guest->steps);
	others = guest->reserved - dev->reserved;
	pregrant_back_limit_pages(dev->back, others < pregrant_guest_pages ? pregrant_guest_pages - others : 0);
	came_to = pregrant_back_step(dev->back);
	pages = pregrant_back_pages(dev->back);
	guest->reserved = others + pages;
	WRITE_ONCE(dev->reserved, pages);
	mutex_unlock(&guest->steps);
	return came_to;
}

/* Called with `control` held, when the vif is closed: its pages are the others'. */
void pregrant_guest_leave(struct pregrant_device *dev)
{
	mutex_lock(&dev->guest->steps);
	dev->guest->reserved -= dev->reserved;
	WRITE_ONCE(dev->reserved, 0);
	mutex_unlock(&dev->guest->steps);
}
