// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0
/*
 * The memory of bursts. Long frames of the guest's stay where they were fetched: their skbs have
 * references to the pages of that burst, and the next one is fetched elsewhere, until all of them
 * are freed.
 *
 *   own       the core's: no skb ever has a part of it. For bursts of short frames, and while all
 *             others are held
 *   bursts    a queue's, which skbs may have: each is made when it is first needed. It is freed with
 *             the queue, or with the last skb that has a part of it
 *
 * So skbs hold at most PREGRANT_BURSTS bursts of a queue, however long they live.
 */
#include <linux/gfp.h>
#include <linux/mm.h>
#include <linux/slab.h>

#include "driver.h"

/* Pages of the kernel's own addresses if possible, since the frame of each is looked up. */
void *pk_burst(size_t bytes)
{
	return kvzalloc(bytes, GFP_KERNEL | __GFP_NOFAIL);
}

void pk_burst_free(void *at)
{
	kvfree(at);
}

void *pk_burst_next(struct pregrant_queue *queue, size_t bytes)
{
	unsigned int k;

	for (k = 0; k < PREGRANT_BURSTS; k++) {
		struct page **burst = &queue->bursts[k];

		if (!*burst)
			*burst = alloc_pages(GFP_NOWAIT | __GFP_NOWARN | __GFP_NOMEMALLOC | __GFP_COMP | __GFP_ZERO,
					     get_order(bytes));
		if (!*burst)
			break;
		if (page_count(*burst) == 1) {
			queue->burst = *burst;
			return page_address(*burst);
		}
	}
	queue->burst = NULL;
	return NULL;
}

/* Called when no poll will run any more. */
void pregrant_bursts_free(struct pregrant_queue *queue)
{
	unsigned int k;

	for (k = 0; k < PREGRANT_BURSTS; k++)
		if (queue->bursts[k])
			put_page(queue->bursts[k]);
}
