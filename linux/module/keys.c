// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0
/* A device's directories in xenstore, for both drivers. The core interprets the keys. */
#include <linux/err.h>
#include <linux/kernel.h>
#include <linux/mutex.h>
#include <linux/ratelimit.h>
#include <linux/slab.h>
#include <linux/string.h>

#include "driver.h"

int pk_key_read(struct pregrant_device *dev, bool own, const char *key, size_t n, char *to, size_t room)
{
	char *name = kstrndup(key, n, GFP_KERNEL), *value;
	const char *dir;
	unsigned int len;
	int ret;

	if (!name)
		return -ENOMEM;
	dir = own ? dev->xbdev->nodename : pregrant_peer_dir(dev);
	value = dir ? xenbus_read(XBT_NIL, dir, name, &len) : ERR_PTR(-ENOENT);
	if (!own && !strcmp(name, "state"))
		pregrant_peer_state_was_read(dev, !IS_ERR(value));
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

/* Lists the names in the device's own directory, each with a NUL. */
int pk_key_list(struct pregrant_device *dev, u32 transaction, char *to, size_t room)
{
	unsigned int n, i;
	size_t at = 0;
	char **names = xenbus_directory(pregrant_transaction(transaction), dev->xbdev->nodename, "", &n);

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
	int ret = name ? xenbus_rm(pregrant_transaction(transaction), dev->xbdev->nodename, name) : -ENOMEM;

	kfree(name);
	return ret;
}

int pk_key_write(struct pregrant_device *dev, u32 transaction, const char *key, size_t n, const char *value,
		 size_t len)
{
	char *name = kstrndup(key, n, GFP_KERNEL);
	int ret = -ENOMEM;

	if (name)
		ret = xenbus_printf(pregrant_transaction(transaction), dev->xbdev->nodename, name, "%.*s", (int)len,
				    value);
	kfree(name);
	return ret;
}

/* One transaction at a time: a guest may have ten, and more vifs than that. */
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
	int ret = xenbus_transaction_end(pregrant_transaction(transaction), abort);

	mutex_unlock(&transactions);
	return ret;
}

/* Like xenbus_dev_error(), but rate-limited: a peer can cause an error in each step. */
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
