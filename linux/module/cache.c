// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0
/*
 * Size of the L2 cache of a core. `buffers=auto` uses twice as many buffers as fit there, so that
 * the two ends do not pass the same cache lines back and forth.
 */
#include <linux/kernel.h>
#ifdef CONFIG_X86
#include <asm/processor.h>
#if __has_include(<asm/cpuid/api.h>)
#include <asm/cpuid/api.h> /* for cpuid_ecx, which <asm/processor.h> declared before */
#endif
#endif

#include "pregrant.h"

/* The size to assume if CPUID does not report one. */
#define UNKNOWN_KB 2048

u32 pk_private_cache(void)
{
	u32 kb = 0;

#ifdef CONFIG_X86
	/* AMD and Intel both report it in this leaf; in a PV guest Xen answers. */
	if (boot_cpu_data.extended_cpuid_level >= 0x80000006)
		kb = cpuid_ecx(0x80000006) >> 16;
#endif
	return (kb ? kb : UNKNOWN_KB) << 10;
}
