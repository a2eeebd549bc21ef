// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0
/*
 * Both ends of a vif within this kernel, without Xen: frames each way by each path, every byte of
 * them compared. Loading it plays it; a failure is that of loading.
 */
#include <linux/init.h>
#include <linux/module.h>
#include <linux/moduleparam.h>

#include "pregrant.h"

/* kbuild gives an object to one module; this one needs the core's heap and log as the driver does. */
#include "heap.c"
#include "log.c"

static unsigned long frames = 1000000;
module_param(frames, ulong, 0444);
MODULE_PARM_DESC(frames, "frames each way by each path");

static int __init selftest_init(void)
{
	int result = pregrant_selftest(frames);

	pr_info("pregrant: selftest %s, %d atomic allocations\n", result ? "failed" : "passed",
		atomic_read(&pregrant_atomic_allocations));
	return result;
}

static void __exit selftest_exit(void)
{
}

module_init(selftest_init);
module_exit(selftest_exit);
MODULE_DESCRIPTION("Self-test of pregrant: both ends of a vif in the kernel");
MODULE_LICENSE("Dual MIT/GPL");
