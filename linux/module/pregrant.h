/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0 */
/*
 * The two languages' one border: linux/core/src/shim.rs and front.rs say the same.
 *
 *   C  --pregrant_*-->  Rust   the front: states, keys, queues, frames
 *   C  <----pk_*------  Rust   what only the kernel has
 *
 * Texts are an address and a length. A negative number is the kernel's error code.
 */
#ifndef PREGRANT_H
#define PREGRANT_H

#include <linux/types.h>

struct pregrant_device;
struct pregrant_channel;
struct sk_buff;

/* heap.c. Memory that is asked for where nobody may sleep is counted: it is to stay 0. */
extern atomic_t pregrant_atomic_allocations;
void *pk_alloc(size_t size, size_t align, bool zeroed);
void pk_free(void *at);
void *pk_pages(size_t n);
void pk_free_pages(void *at, size_t n);

/* log.c */
void pk_log(u32 level, const char *text, size_t len);
void pk_panic(const char *text, size_t len);
u64 pk_now_ns(void);

/* The self-test, linux/core/src/selftest: 0 where all is right. */
int pregrant_selftest(u64 frames);

#endif
