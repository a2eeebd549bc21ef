/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0 */
/*
 * Xen and xenstore as the back meets them in its self-test. This is included before each file of
 * the driver, whose text, and whose object of Rust, are those of the module: only the functions
 * below are others.
 *
 *   driver --HYPERVISOR_grant_table_op, gnttab_*--> grant_table.c   both domains' pages are this kernel's
 *          --xenbus_*-----------------------------> store.c         a list of keys
 *          --event channels, NAPI-----------------> interrupt.c     handlers are called; polls are measured
 *          --lines of the log---------------------> counted, and logged
 */
#ifndef PREGRANT_XEN_H
#define PREGRANT_XEN_H

#include <linux/device.h>
#include <linux/interrupt.h>
#include <linux/netdevice.h>
#include <linux/version.h>
#include <xen/events.h>
#include <xen/grant_table.h>
#include <xen/page.h>
#include <xen/xen.h>
#include <xen/xenbus.h>

#include <asm/xen/hypercall.h>

/* grant_table.c */
int table_op(unsigned int cmd, void *ops, unsigned int n);
int table_alloc_pages(int n, struct page **pages);
void table_free_pages(int n, struct page **pages);
#define HYPERVISOR_grant_table_op(cmd, ops, n) table_op(cmd, ops, n)
#define gnttab_batch_map(ops, n) ((void)table_op(GNTTABOP_map_grant_ref, ops, n))
#define gnttab_alloc_pages(n, pages) table_alloc_pages(n, pages)
#define gnttab_free_pages(n, pages) table_free_pages(n, pages)
#define pfn_to_gfn(pfn) (pfn)

/* store.c */
void *store_read(const char *dir, const char *node, unsigned int *len);
char **store_directory(const char *dir, unsigned int *n);
int store_remove(const char *dir, const char *node);
__printf(3, 4) int store_write(const char *dir, const char *node, const char *format, ...);
__scanf(3, 4) int store_scan(const char *dir, const char *node, const char *format, ...);
unsigned int store_number(const char *dir, const char *node, unsigned int otherwise);
int store_watch(const char *path, struct xenbus_watch *watch,
		bool (*will)(struct xenbus_watch *, const char *, const char *),
		void (*changed)(struct xenbus_watch *, const char *, const char *));
int store_watch_once(struct xenbus_watch *watch);
void store_unwatch(struct xenbus_watch *watch);
int selftest_begin(struct xenbus_driver *driver);
#define xenbus_read(t, dir, node, len) ((void)(t), store_read(dir, node, len))
#define xenbus_directory(t, dir, node, n) ((void)(t), store_directory(dir, n))
#define xenbus_rm(t, dir, node) ((void)(t), store_remove(dir, node))
#define xenbus_printf(t, dir, node, ...) ((void)(t), store_write(dir, node, __VA_ARGS__))
#define xenbus_scanf(t, dir, node, ...) ((void)(t), store_scan(dir, node, __VA_ARGS__))
#define xenbus_read_unsigned(dir, node, otherwise) store_number(dir, node, otherwise)
#define xenbus_transaction_start(t) ((t)->id = 1, 0)
#define xenbus_transaction_end(t, abort) ((void)(t), (void)(abort), 0)
#define xenbus_watch_path(xbdev, path, watch, will, changed) store_watch(path, watch, will, changed)
#define register_xenbus_watch(watch) store_watch_once(watch)
#define unregister_xenbus_watch(watch) store_unwatch(watch)
#define xenbus_switch_state(xbdev, state) store_write((xbdev)->nodename, "state", "%d", state)
#define xenbus_dev_error(xbdev, error, ...) pr_warn(__VA_ARGS__)
#define xenbus_dev_fatal(xbdev, error, ...) pr_warn(__VA_ARGS__)
/* The driver's init registers it: then the test runs, and its result is the init's. */
#define __xenbus_register_backend(driver, owner, name) selftest_begin(driver)
#define xenbus_unregister_driver(driver) ((void)(driver))
#define driver_for_each_device(driver, from, data, call) ((void)(data), (void)(call), -ENODEV)
#undef xen_domain
#define xen_domain() true

/* interrupt.c */
int channel_bind(u32 remote, irq_handler_t handler, void *data);
void channel_unbind(int irq);
void channel_notify(int irq);
void channel_eoi(int irq, unsigned int flags);
void measured_napi_add(struct net_device *netdev, struct napi_struct *napi, int (*poll)(struct napi_struct *, int));
#define bind_interdomain_evtchn_to_irqhandler_lateeoi(xbdev, remote, handler, flags, name, data) \
	channel_bind(remote, handler, data)
#define unbind_from_irqhandler(irq, data) ((void)(data), channel_unbind(irq))
#define notify_remote_via_irq(irq) channel_notify(irq)
#define xen_irq_lateeoi(irq, flags) channel_eoi(irq, flags)
#define netif_napi_add(netdev, napi, poll) measured_napi_add(netdev, napi, poll)

/* Allocations of the core that are not freed, and lines that the driver has logged. */
extern atomic64_t selftest_memory;
extern atomic_t selftest_lines;
#define pregrant_note_memory(n) atomic64_add(n, &selftest_memory)
#define netdev_warn(netdev, ...) (atomic_inc(&selftest_lines), (netdev_warn)(netdev, __VA_ARGS__))
#define netdev_info(netdev, ...) (atomic_inc(&selftest_lines), (netdev_info)(netdev, __VA_ARGS__))
#undef dev_err
#define dev_err(dev, ...) (atomic_inc(&selftest_lines), _dev_err(dev, __VA_ARGS__))

#endif
