// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0
/*
 * Tests xdp.c with a ring of the test's own: a program of another interface sends to a queue whose
 * TX half was taken away after the queue was chosen.
 */
#include <linux/etherdevice.h>

#include "driver.h"

static unsigned int published;
static bool has_half;

#define pregrant_tx_publish(tx) (published++, has_half = (tx) != NULL)
#define pregrant_send_bytes(queue, bytes, len, csum) false
#define pregrant_send_buffer(queue, at) false
#define pregrant_take_returned(queue, budget) 0

#include "xdp.c"

static const char *play(struct net_device *netdev, struct pregrant_device *dev, struct pregrant_queue *queue)
{
	struct xdp_frame *frames[1] = {};
	int sent;

	local_bh_disable();
	sent = pregrant_xdp_xmit(netdev, 0, frames, 0);
	local_bh_enable();
	if (sent || published)
		return "frames go to a queue that has no half";
	queue->tx = (struct pregrant_tx *)dev;
	local_bh_disable();
	pregrant_xdp_xmit(netdev, 0, frames, 0);
	local_bh_enable();
	return published == 1 && has_half ? NULL : "frames do not go to a queue";
}

int pregrant_selftest_xdp(void)
{
	struct net_device *netdev = alloc_etherdev(sizeof(struct pregrant_device));
	static struct pregrant_queue queue;
	const char *wrong = "no memory";
	struct pregrant_device *dev;

	if (netdev) {
		dev = netdev_priv(netdev);
		dev->netdev = netdev;
		dev->queues = &queue;
		dev->queues_up = 1;
		dev->running = true;
		queue.dev = dev;
		wrong = play(netdev, dev, &queue);
		free_netdev(netdev);
	}
	if (wrong)
		pr_warn("pregrant: selftest of XDP failed: %s\n", wrong);
	return wrong ? -EINVAL : 0;
}
