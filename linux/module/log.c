// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0
/* The kernel's log, its clock, and its end. */
#include <linux/bug.h>
#include <linux/kernel.h>
#include <linux/ktime.h>
#include <linux/printk.h>
#include <linux/ratelimit.h>

#include "driver.h"

/* Lines that a back can cause come in bursts, not for ever, and take no other device's lines. */
void pk_log(struct pregrant_device *dev, u32 level, const char *text, size_t len)
{
	int n = min_t(size_t, len, 256);

	if (!dev && level <= 4)
		pr_warn("pregrant: %.*s\n", n, text);
	else if (!dev)
		pr_info("pregrant: %.*s\n", n, text);
	else if (!__ratelimit(&dev->says))
		return;
	else if (level <= 4)
		netdev_warn(dev->netdev, "%.*s\n", n, text);
	else
		netdev_info(dev->netdev, "%.*s\n", n, text);
}

/* Its back broke the protocol, which closes it for good: one line, whichever queues see it. */
void pk_fault(struct pregrant_device *dev, const char *text, size_t len)
{
	if (!test_and_set_bit(1, &dev->failed))
		netdev_err(dev->netdev, "the back broke the protocol: %.*s; closed until it is bound again\n",
			   (int)min_t(size_t, len, 256), text);
}

/* A mistake of the core's. Nothing that it holds can be trusted any more. */
void pk_panic(const char *text, size_t len)
{
	pr_emerg("pregrant: %.*s\n", (int)min_t(size_t, len, 256), text);
	BUG();
}

u64 pk_now_ns(void)
{
	return ktime_get_ns();
}
