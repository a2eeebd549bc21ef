/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0 */
/* An event channel of either driver. events.c makes it, and has the interrupt handler. */
#ifndef PREGRANT_CHANNEL_H
#define PREGRANT_CHANNEL_H

#include "driver.h"

struct pregrant_channel {
	struct list_head list;
	struct pregrant_device *dev;
	struct pregrant_queue *queue; /* NULL: for the control ring, or not connected yet */
	int irq;
	u32 port;
	bool is_tx; /* of a front's */
	bool pending; /* an event has no EOI yet */
	bool early; /* the work was done before its event came, which will find none */
	u32 idle; /* number of events in a row without work */
};

#endif
