// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0
/* A device's directories in xenstore. The core has the meaning of the keys. */
#include <linux/err.h>
#include <linux/kernel.h>
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
	value = xenbus_read(XBT_NIL, own ? dev->xbdev->nodename : dev->xbdev->otherend, name, &len);
	kfree(name);
	if (IS_ERR(value))
		return PTR_ERR(value);
	ret = len > room ? -EOVERFLOW : len;
	if (ret >= 0)
		memcpy(to, value, len);
	kfree(value);
	return ret;
}

/* Names, each with a NUL. */
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

int pk_transaction_begin(struct pregrant_device *dev, u32 *transaction)
{
	struct xenbus_transaction t;
	int ret = xenbus_transaction_start(&t);

	*transaction = t.id;
	return ret;
}

int pk_transaction_end(struct pregrant_device *dev, u32 transaction, bool abort)
{
	return xenbus_transaction_end(of(transaction), abort);
}

/* xenbus writes no state into a directory that is gone, nor one that it believes to be there: the toolstack may have
 * written another.
 */
int pk_state_write(struct pregrant_device *dev, u32 state)
{
	dev->xbdev->state = XenbusStateUnknown;
	return xenbus_switch_state(dev->xbdev, state);
}

/* The kernel's log has it too. */
int pk_error_write(struct pregrant_device *dev, int code, const char *text, size_t len)
{
	xenbus_dev_error(dev->xbdev, code, "%.*s", (int)len, text);
	return 0;
}

int pk_error_remove(struct pregrant_device *dev)
{
	char *path = kasprintf(GFP_KERNEL, "error/%s", dev->xbdev->nodename);
	int ret = path ? xenbus_rm(XBT_NIL, path, "error") : -ENOMEM;

	kfree(path);
	return ret;
}
