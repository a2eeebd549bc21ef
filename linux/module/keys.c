// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0
/* A device's directories in xenstore. The core interprets the keys. */
#include <linux/err.h>
#include <linux/kernel.h>
#include <linux/mutex.h>
#include <linux/ratelimit.h>
#include <linux/slab.h>
#include <linux/string.h>

#include "driver.h"

static struct xenbus_transaction of(u32 transaction)
{
	return (struct xenbus_transaction) { .id = transaction };
}

int pk_key_read(struct pregrant_device *dev, bool own, const char *key, size_t n, char *to, size_t room)
{
	char *name = kstrndup(key, n, GFP_KERNEL), *value;
	unsigned int len;
	int ret;

	if (!name)
		return -ENOMEM;
	value = own || dev->back ? xenbus_read(XBT_NIL, own ? dev->xbdev->nodename : dev->back, name, &len) :
				   ERR_PTR(-ENOENT);
	/* No watch fires when a key becomes readable, so a timer reads it again. */
	if (!own && !strcmp(name, "state"))
		dev->backend_unreadable = IS_ERR(value);
	kfree(name);
	/* xenstored refuses access once the domain is gone, with its directories. */
	if (!own && PTR_ERR_OR_ZERO(value) == -EACCES)
		return -ENOENT;
	if (IS_ERR(value))
		return PTR_ERR(value);
	ret = len > room ? -EOVERFLOW : len;
	if (ret >= 0)
		memcpy(to, value, len);
	kfree(value);
	return ret;
}

/* Lists the names in the frontend directory, each with a NUL. */
int pk_key_list(struct pregrant_device *dev, u32 transaction, char *to, size_t room)
{
	unsigned int n, i;
	size_t at = 0;
	char **names = xenbus_directory(of(transaction), dev->xbdev->nodename, "", &n);

	if (IS_ERR(names))
		return PTR_ERR(names);
	for (i = 0; i < n; i++) {
		size_t len = strlen(names[i]) + 1;

		if (len > room - at) {
			kfree(names);
			return -EOVERFLOW;
		}
		memcpy(to + at, names[i], len);
		at += len;
	}
	kfree(names);
	return at;
}

int pk_key_remove(struct pregrant_device *dev, u32 transaction, const char *key, size_t n)
{
	char *name = kstrndup(key, n, GFP_KERNEL);
	int ret = name ? xenbus_rm(of(transaction), dev->xbdev->nodename, name) : -ENOMEM;

	kfree(name);
	return ret;
}

int pk_key_write(struct pregrant_device *dev, u32 transaction, const char *key, size_t n, const char *value,
		 size_t len)
{
	char *name = kstrndup(key, n, GFP_KERNEL);
	int ret = -ENOMEM;

	if (name)
		ret = xenbus_printf(of(transaction), dev->xbdev->nodename, name, "%.*s", (int)len, value);
	kfree(name);
	return ret;
}

/* One transaction at a time: a domain may have ten, and a guest more vifs than that. */
static DEFINE_MUTEX(transactions);

int pk_transaction_begin(struct pregrant_device *dev, u32 *transaction)
{
	struct xenbus_transaction t;
	int ret;

	mutex_lock(&transactions);
	ret = xenbus_transaction_start(&t);
	if (ret)
		mutex_unlock(&transactions);
	else
		*transaction = t.id;
	return ret;
}

int pk_transaction_end(struct pregrant_device *dev, u32 transaction, bool abort)
{
	int ret = xenbus_transaction_end(of(transaction), abort);

	mutex_unlock(&transactions);
	return ret;
}

/* Number of tries of a transaction that conflicts with another. */
#define STATE_TRIES 100

/* State 1, which this front did not write (see backend.c): the directory was recreated. */
static bool is_another(const struct xenbus_device *xbdev, const char *state)
{
	return !strcmp(state, "1") && xbdev->state != XenbusStateInitialising;
}

/* -ENOENT: the directory is gone, and must not be created by this write, or is another vif's. */
static int write_state(struct pregrant_device *dev, u32 state)
{
	const char *dir = dev->xbdev->nodename;
	char *was;
	int ret, ended;
	u32 t;

	ret = pk_transaction_begin(dev, &t);
	if (ret)
		return ret;
	was = xenbus_read(of(t), dir, "state", NULL);
	if (IS_ERR(was)) {
		ret = PTR_ERR(was);
	} else {
		ret = is_another(dev->xbdev, was) ? -ENOENT : xenbus_printf(of(t), dir, "state", "%u", state);
		kfree(was);
	}
	ended = pk_transaction_end(dev, t, ret != 0);
	return ret ? ret : ended;
}

/*
 * Does not call xenbus_switch_state(), which returns no error, and does not write a state that it
 * believes to be in xenstore although the toolstack may have changed it. So xbdev->state, which
 * xenbus reads, is set here.
 */
int pk_state_write(struct pregrant_device *dev, u32 state)
{
	u32 before = pregrant_written_state(dev);
	bool is_first = state == XenbusStateInitialising;
	bool later = !is_first && pregrant_note_later(dev, state);
	unsigned int tries = STATE_TRIES;
	int ret;

	if (is_first)
		pregrant_note_state(dev, state);
	do
		ret = write_state(dev, state);
	while (ret == -EAGAIN && --tries);
	/* On failure xenbus must see a foreign 1 as such. */
	if (ret)
		pregrant_note_state(dev, before);
	else if (!later)
		pregrant_note_state(dev, state);
	/* The directory is gone: remove follows. */
	return ret == -ENOENT ? 0 : ret;
}

/* Returns whether the directory belongs to a recreated vif. `missing`: the result if it is gone. */
static bool look(struct xenbus_device *xbdev, bool missing)
{
	char *state = xenbus_read(XBT_NIL, xbdev->nodename, "state", NULL);
	bool another;

	if (IS_ERR(state))
		return missing && PTR_ERR(state) == -ENOENT;
	another = is_another(xbdev, state);
	kfree(state);
	return another;
}

bool pregrant_is_gone(struct pregrant_device *dev)
{
	return look(dev->xbdev, true);
}

bool pregrant_is_another(struct xenbus_device *xbdev)
{
	return look(xbdev, false);
}

/* Like xenbus_dev_error(), but rate-limited: a backend can cause an error in each step. */
int pk_error_write(struct pregrant_device *dev, int code, const char *text, size_t len)
{
	char *path = kasprintf(GFP_KERNEL, "error/%s", dev->xbdev->nodename);
	int ret = -ENOMEM;

	if (__ratelimit(&dev->log_limit))
		dev_err(&dev->xbdev->dev, "%d %.*s\n", -code, (int)len, text);
	if (path)
		ret = xenbus_printf(XBT_NIL, path, "error", "%d %.*s", -code, (int)len, text);
	kfree(path);
	return ret;
}

int pk_error_remove(struct pregrant_device *dev)
{
	char *path = kasprintf(GFP_KERNEL, "error/%s", dev->xbdev->nodename);
	int ret = path ? xenbus_rm(XBT_NIL, path, "error") : -ENOMEM;

	kfree(path);
	return ret;
}
