// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0
/* Grants of pages, which end in one atomic step: a page that the back still has is said to be. */
#include <linux/mm.h>
#include <linux/vmalloc.h>
#include <xen/grant_table.h>
#include <xen/page.h>

#include "driver.h"

/* How many there were, of all devices: ethtool -S shows that copied frames cost none. */
atomic64_t pregrant_grants = ATOMIC64_INIT(0);
atomic64_t pregrant_grants_ended = ATOMIC64_INIT(0);
/* Those that the kernel ends, when the back has let go. */
atomic64_t pregrant_grants_deferred = ATOMIC64_INIT(0);

int pk_grant(u16 to, void *at, bool readonly)
{
	struct page *page = is_vmalloc_addr(at) ? vmalloc_to_page(at) : virt_to_page(at);
	int gref = gnttab_grant_foreign_access(to, xen_page_to_gfn(page), readonly);

	if (gref >= 0)
		atomic64_inc(&pregrant_grants);
	return gref;
}

bool pk_grant_end(u32 gref)
{
	if (!gnttab_try_end_foreign_access(gref))
		return false;
	atomic64_inc(&pregrant_grants_ended);
	return true;
}
