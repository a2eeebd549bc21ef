// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0
/*
 * Both ends of a vif within this kernel, without Xen: frames each way by each path, every byte of
 * them compared. Loading it plays it; a failure is that of loading.
 */
#include <linux/init.h>
#include <linux/module.h>
#include <linux/moduleparam.h>
#include <linux/slab.h>
#include <linux/mm.h>

#include "pregrant.h"

/* kbuild gives an object to one module; this one needs the core's heap and log as the driver does. */
#include "heap.c"
#include "log.c"

static unsigned long frames = 1000000;
module_param(frames, ulong, 0444);
MODULE_PARM_DESC(frames, "frames each way by each path");

/* A back's set-up, which belongs into user space, wants more than a kernel's stack. */
#define STACK_BYTES (128 << 10)

static int result;

static void play(void)
{
	result = pregrant_selftest(frames);
}

static int __init selftest_init(void)
{
	u8 *stack = kvmalloc(STACK_BYTES, GFP_KERNEL);
	void *top;

	if (!stack)
		return -ENOMEM;
	top = stack + STACK_BYTES - 16;
	/* As the kernel itself goes to an interrupt's stack: its unwinder knows this form. */
	asm volatile("movq	%%rsp, (%[top])\n\t"
		     "movq	%[top], %%rsp\n\t"
		     "call	%P[play]\n\t"
		     "popq	%%rsp"
		     : [top] "+b" (top), ASM_CALL_CONSTRAINT
		     : [play] "i" (play)
		     : "cc", "rax", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11", "memory");
	kvfree(stack);
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
