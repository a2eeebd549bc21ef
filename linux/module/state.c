// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0
/* The front's own state in xenstore, and whether its directory is still the one of its vif. */
#include <linux/err.h>
#include <linux/slab.h>
#include <linux/string.h>

#include "driver.h"

/* Number of tries of a transaction that conflicts with another. */
#define STATE_TRIES 100

/* State 1, which this front did not write (see backend.c): the directory was recreated. */
static bool is_another(const struct xenbus_device *xbdev, const char *state)
{
	return !strcmp(state, "1") && xbdev->state != XenbusStateInitialising;
}

/* -ENOENT: the directory is gone, and must not be created by this write, or is another vif's. */
static int write_state(struct pregrant_device *dev, u32 state)
{
	const char *dir = dev->xbdev->nodename;
	char *was;
	int ret, ended;
	u32 t;

	ret = pk_transaction_begin(dev, &t);
	if (ret)
		return ret;
	was = xenbus_read(pregrant_transaction(t), dir, "state", NULL);
	if (IS_ERR(was)) {
		ret = PTR_ERR(was);
	} else {
		ret = is_another(dev->xbdev, was) ? -ENOENT :
		      xenbus_printf(pregrant_transaction(t), dir, "state", "%u", state);
		kfree(was);
	}
	ended = pk_transaction_end(dev, t, ret != 0);
	return ret ? ret : ended;
}

/*
 * Does not call xenbus_switch_state(), which returns no error, and does not write a state that it
 * believes to be in xenstore although the toolstack may have changed it. So xbdev->state, which
 * xenbus reads, is set here.
 */
int pk_state_write(struct pregrant_device *dev, u32 state)
{
	u32 before = pregrant_written_state(dev);
	bool is_first = state == XenbusStateInitialising;
	bool later = !is_first && pregrant_note_later(dev, state);
	unsigned int tries = STATE_TRIES;
	int ret;

	if (is_first)
		pregrant_note_state(dev, state);
	do
		ret = write_state(dev, state);
	while (ret == -EAGAIN && --tries);
	/* On failure xenbus must see a foreign 1 as such. */
	if (ret)
		pregrant_note_state(dev, before);
	else if (!later)
		pregrant_note_state(dev, state);
	/* The directory is gone: remove follows. */
	return ret == -ENOENT ? 0 : ret;
}

/* Returns whether the directory belongs to a recreated vif. `missing`: the result if it is gone. */
static bool look(struct xenbus_device *xbdev, bool missing)
{
	char *state = xenbus_read(XBT_NIL, xbdev->nodename, "state", NULL);
	bool another;

	if (IS_ERR(state))
		return missing && PTR_ERR(state) == -ENOENT;
	another = is_another(xbdev, state);
	kfree(state);
	return another;
}

bool pregrant_is_gone(struct pregrant_device *dev)
{
	return look(dev->xbdev, true);
}

bool pregrant_is_another(struct xenbus_device *xbdev)
{
	return look(xbdev, false);
}
