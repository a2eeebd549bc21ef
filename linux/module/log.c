// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0
/* What the core needs to log a line, to read the clock and to panic. */
#include <linux/bug.h>
#include <linux/kernel.h>
#include <linux/ktime.h>
#include <linux/printk.h>
#include <linux/ratelimit.h>

#include "driver.h"

/* Lines are rate-limited per device, since a peer can cause them. */
void pk_log(struct pregrant_device *dev, u32 level, const char *text, size_t len)
{
	int n = min_t(size_t, len, 256);

	if (!dev && level <= 4)
		pr_warn("pregrant: %.*s\n", n, text);
	else if (!dev)
		pr_info("pregrant: %.*s\n", n, text);
	else if (!__ratelimit(&dev->log_limit))
		return;
	else if (level <= 4)
		netdev_warn(dev->netdev, "%.*s\n", n, text);
	else
		netdev_info(dev->netdev, "%.*s\n", n, text);
}

/* The core has a bug: its state cannot be trusted any more. */
void pk_panic(const char *text, size_t len)
{
	pr_emerg("pregrant: %.*s\n", (int)min_t(size_t, len, 256), text);
	BUG();
}

u64 pk_now_ns(void)
{
	return ktime_get_ns();
}
