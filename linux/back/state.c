// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0
/* The back's own state in xenstore. */
#include <linux/err.h>
#include <linux/slab.h>

#include "driver.h"

/* Number of tries of a transaction that conflicts with another. */
#define STATE_TRIES 100

/* -ENOENT: the directory is gone, and must not be created by this write. */
static int write_state(struct pregrant_device *dev, u32 state)
{
	const char *dir = dev->xbdev->nodename;
	int ret, ended, was;
	u32 t;

	ret = pk_transaction_begin(dev, &t);
	if (ret)
		return ret;
	ret = xenbus_scanf(pregrant_transaction(t), dir, "state", "%d", &was);
	/* A state that is no number is written over. */
	if (ret > 0 || ret == -ERANGE)
		ret = xenbus_printf(pregrant_transaction(t), dir, "state", "%u", state);
	ended = pk_transaction_end(dev, t, ret != 0);
	return ret ? ret : ended;
}

/* xenbus reads xbdev->state when it removes the device: then it must not write what is there. */
int pk_state_write(struct pregrant_device *dev, u32 state)
{
	unsigned int tries = STATE_TRIES;
	int ret;

	do
		ret = write_state(dev, state);
	while (ret == -EAGAIN && --tries);
	if (!ret)
		dev->xbdev->state = state;
	return ret == -ENOENT ? 0 : ret;
}
