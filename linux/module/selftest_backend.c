// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0
/*
 * Tests how backend.c and state.c note a front's own state, with a xenstore and events of the
 * test's own. The thread of xenbus reads xenstore and then xbdev->state: it must never find state 1
 * in xenstore and a later state of the front in xbdev->state. No note of a written state is lost.
 */
#define pregrant_backend_find notes_backend_find
#define pregrant_backend_moved notes_backend_moved
#define pregrant_is_gone notes_is_gone
#define pregrant_note_state notes_note_state
#define pk_error_write notes_error_write
#define pk_error_remove notes_error_remove

#include <linux/err.h>
#include <linux/kernel.h>
#include <linux/slab.h>
#include <linux/string.h>

#include "driver.h"

/* The front's key `state`: the stored value, and the value within a transaction. */
static u32 stored, in_transaction;
static bool is_missing, fails;
static struct pregrant_device *noted;
static struct xenbus_watch *watched;
/*
 * If set, the event of a write comes before the write returns. `seen`: xbdev->state at that event.
 */
static bool is_fast;
static u32 seen;

static void event(void)
{
	watched->callback(watched, watched->node, "");
}

static char *test_read(const char *dir, const char *key, unsigned int *len)
{
	if (strcmp(dir, noted->xbdev->nodename) || strcmp(key, "state") || is_missing)
		return ERR_PTR(-ENOENT);
	if (len)
		*len = 1;
	return kasprintf(GFP_KERNEL, "%u", stored);
}

/* Writes the key `state`; other keys are not stored, since nothing reads them. */
static int test_write(const char *dir, const char *key, u32 value)
{
	if (!strcmp(dir, noted->xbdev->nodename) && !strcmp(key, "state"))
		in_transaction = value;
	return 0;
}

static int test_end(bool abort)
{
	if (abort)
		return 0;
	if (fails)
		return -EIO;
	stored = in_transaction;
	seen = noted->xbdev->state;
	if (is_fast)
		event();
	return 0;
}

static int test_register(struct xenbus_watch *watch)
{
	watched = watch;
	return 0;
}

#define xenbus_read(t, dir, key, len) ((void)(t), test_read(dir, key, len))
#define xenbus_read_unsigned(dir, key, otherwise) (is_missing ? (otherwise) : stored)
#define xenbus_printf(t, dir, key, form, value, ...) ((void)(t), test_write(dir, key, value))
#define xenbus_transaction_start(t) ((t)->id = 1, in_transaction = stored, 0)
#define xenbus_transaction_end(t, abort) ((void)(t), test_end(abort))
#define xenbus_directory(t, dir, key, n) ((void)(t), *(n) = 0, (char **)ERR_PTR(-ENOENT))
#define xenbus_rm(t, dir, key) ((void)(t), 0)
#define xenbus_gather(t, dir, ...) (-ENOENT)
#define register_xenbus_watch(watch) test_register(watch)
#define unregister_xenbus_watch(watch) do { } while (0)
#define pregrant_read_mac(xbdev, mac) (-ENOENT)
#define pregrant_reset(dev) do { } while (0)

#include "keys.c"
#include "state.c"
#include "backend.c"

static const char *notes(struct pregrant_device *dev)
{
	struct xenbus_device *xbdev = dev->xbdev;

	stored = xbdev->state = XenbusStateInitialising;
	if (pk_state_write(dev, XenbusStateConnected) || stored != XenbusStateConnected)
		return "a state is not written";
	if (xbdev->state != XenbusStateInitialising)
		return "what follows a 1 is noted while xenbus may have read the 1";
	/* If the write of another state fails, the stored state is the noted one. */
	fails = true;
	if (pk_state_write(dev, XenbusStateClosing) != -EIO || xbdev->state != XenbusStateConnected)
		return "what was written is not noted where the next write fails";
	fails = false;
	is_fast = true;
	if (pk_state_write(dev, XenbusStateClosing) || xbdev->state != XenbusStateClosing)
		return "an event that comes early notes nothing";
	is_fast = false;
	if (pk_state_write(dev, XenbusStateInitialising) || seen != XenbusStateInitialising)
		return "a 1 is written before it is noted";
	is_missing = true;
	event();
	is_missing = false;
	if (xbdev->state != XenbusStateInitialising)
		return "a key that cannot be read counts as a state";
	pk_state_write(dev, XenbusStateConnected);
	event();
	if (xbdev->state != XenbusStateConnected)
		return "a state is not noted once it is written";
	/* The toolstack recreates the directory. */
	stored = XenbusStateInitialising;
	event();
	if (pk_state_write(dev, XenbusStateClosed) || stored != XenbusStateInitialising ||
	    xbdev->state != XenbusStateConnected || !pregrant_is_another(xbdev))
		return "another front's state is written over, or noted";
	stored = XenbusStateConnected;
	pk_state_write(dev, XenbusStateClosed);
	pregrant_backend_leave(dev);
	if (xbdev->state != XenbusStateClosed)
		return "a driver that goes leaves a state that is not in xenstore";
	pk_state_write(dev, XenbusStateInitialising);
	pk_state_write(dev, XenbusStateConnected);
	return xbdev->state == XenbusStateConnected ? NULL : "without a watch nothing is noted";
}

int pregrant_selftest_backend(void)
{
	struct pregrant_device *dev = kzalloc(sizeof(*dev), GFP_KERNEL);
	struct xenbus_device *xbdev = kzalloc(sizeof(*xbdev), GFP_KERNEL);
	const char *wrong = "no memory";

	if (!dev || !xbdev)
		goto out;
	noted = dev;
	dev->xbdev = xbdev;
	xbdev->nodename = "device/vif/0";
	pregrant_backend_watch(dev);
	wrong = dev->own_watch && &dev->own_watch->watch == watched ? notes(dev) : "no watch";
	pregrant_backend_leave(dev);
	pregrant_backend_end();
out:
	if (wrong)
		pr_warn("pregrant: selftest of states failed: %s\n", wrong);
	kfree(xbdev);
	kfree(dev);
	return wrong ? -EINVAL : 0;
}
