// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0
/*
 * Guests: what the vifs of each share is the number of pages that it may have mapped (XSA-300).
 *
 * Of what the others neither have nor may ask for, a vif that connects is given its even part, with
 * those that may come; one in SPARE is left for rings of later ones, without which no vif connects.
 * Its step is made under the guest's lock, so that no two are given the same. Whatever they ask
 * for, map.c refuses more.
 */
#include <linux/slab.h>

#include "driver.h"

#define SPARE 16

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

static void count_pages(struct pregrant_device *dev, unsigned int pages, unsigned int needed)
{
	struct pregrant_guest *guest = dev->guest;

	guest->reserved += pages - dev->reserved;
	guest->needed += needed - dev->needed;
	guest->connected += !!needed - !!dev->needed;
	dev->needed = needed;
	WRITE_ONCE(dev->reserved, pages);
}

/* Called with `control` held: makes a step of the vif, which knows then what it may have. */
u32 pregrant_guest_step(struct pregrant_device *dev)
{
	struct pregrant_guest *guest = dev->guest;
	unsigned int most = pregrant_guest_pages, taken, waiting, part;
	u32 came_to;

	mutex_lock(&guest->steps);
	taken = most / SPARE + guest->reserved - dev->reserved;
	/* With those that may come, at least this one. */
	waiting = READ_ONCE(guest->users) - guest->connected + !!dev->needed;
	part = taken < most ? (most - taken) / max(waiting, 1U) : 0;
	taken = guest->needed - dev->needed;
	pregrant_back_limit_pages(dev->back, taken < most ? most - taken : 0, part);
	came_to = pregrant_back_step(dev->back);
	if (came_to == PREGRANT_BACK_CONNECTED)
		pregrant_back_share_pages(dev->back, part);
	count_pages(dev, pregrant_back_pages(dev->back), pregrant_back_needed_pages(dev->back));
	mutex_unlock(&guest->steps);
	return came_to;
}

/* Called with `control` held, when the vif is closed: its pages are the others'. */
void pregrant_guest_leave(struct pregrant_device *dev)
{
	mutex_lock(&dev->guest->steps);
	count_pages(dev, 0, 0);
	mutex_unlock(&dev->guest->steps);
}
