// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0
/* Grants of pages. Ending one fails, without waiting, while the backend maps the page. */
#include <linux/mm.h>
#include <linux/vmalloc.h>
#include <xen/grant_table.h>
#include <xen/page.h>

#include "driver.h"

/* Grants of all devices, made and ended: ethtool -S shows that copied frames need none. */
atomic64_t pregrant_grants = ATOMIC64_INIT(0);
atomic64_t pregrant_grants_ended = ATOMIC64_INIT(0);
/* Grants that were left to the kernel, which ends them once the backend has unmapped the page. */
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
