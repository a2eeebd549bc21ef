// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0
/*
 * The counters of `ethtool -S` as files, in /sys/bus/xen-backend/devices/vif-D-N/pregrant. To read
 * them takes no ioctl, no capability, and not the interface's network namespace.
 *
 *   vif      this domain, link, queues, and the counters of the vif and the module
 *   queue0   those of a queue since it connected; a file for each that there may be
 *
 * A line is a name and a number. Those of one queue fit a page, which is what such a file may have.
 */
#include <linux/slab.h>
#include <linux/sysfs.h>

#include "driver.h"

struct pregrant_file {
	struct device_attribute attr;
	unsigned int queue;
	char name[16];
};

struct pregrant_files {
	struct attribute_group group;
	unsigned int domain; /* this one */
	struct pregrant_file vif;
	struct pregrant_file *queues;
	struct attribute *attrs[]; /* the end is NULL */
};

/* The vif is there until pregrant_files_remove() returns, which waits for all readers. */
static struct pregrant_device *of_device(struct device *device)
{
	return dev_get_drvdata(device);
}

static ssize_t show_vif(struct device *device, struct device_attribute *attr, char *to)
{
	struct pregrant_device *dev = of_device(device);
	u64 counters[PREGRANT_VIF_COUNTERS];
	unsigned int i;
	int at;

	pregrant_count_vif(dev, counters);
	at = sysfs_emit(to, "domain %u\nlink %u\nqueues %u\n", dev->files->domain, netif_carrier_ok(dev->netdev),
			READ_ONCE(dev->queues_up));
	for (i = 0; i < PREGRANT_VIF_COUNTERS; i++)
		at += sysfs_emit_at(to, at, "%s %llu\n", pregrant_vif_counters[i], counters[i]);
	return at;
}

static ssize_t show_queue(struct device *device, struct device_attribute *attr, char *to)
{
	struct pregrant_device *dev = of_device(device);
	unsigned int queue = container_of(attr, struct pregrant_file, attr)->queue, dir, i;
	u64 counters[2 * PREGRANT_BACK_COUNTERS];
	int at = 0;

	mutex_lock(&dev->queues_lock);
	pregrant_count_queue(&dev->queues[queue], counters);
	mutex_unlock(&dev->queues_lock);
	for (dir = 0; dir < 2; dir++)
		for (i = 0; i < PREGRANT_BACK_COUNTERS; i++)
			at += sysfs_emit_at(to, at, "%s_%s %llu\n", dir ? "rx" : "tx", pregrant_queue_counters[i],
					    counters[dir * PREGRANT_BACK_COUNTERS + i]);
	return at;
}

static struct attribute *set(struct pregrant_file *file,
			     ssize_t (*show)(struct device *, struct device_attribute *, char *))
{
	sysfs_attr_init(&file->attr.attr);
	file->attr.attr.name = file->name;
	file->attr.attr.mode = 0444;
	file->attr.show = show;
	return &file->attr.attr;
}

static void free_files(struct pregrant_files *files)
{
	kvfree(files->queues);
	kvfree(files);
}

/* Where there is no memory for them, the vif is served without. */
void pregrant_files_add(struct pregrant_device *dev)
{
	unsigned int k, n = dev->max_queues;
	struct pregrant_files *files = kvzalloc(struct_size(files, attrs, n + 2), GFP_KERNEL);

	if (!files)
		return;
	files->queues = kvcalloc(n, sizeof(*files->queues), GFP_KERNEL);
	if (!files->queues)
		goto failed;
	strscpy(files->vif.name, "vif", sizeof(files->vif.name));
	files->attrs[0] = set(&files->vif, show_vif);
	for (k = 0; k < n; k++) {
		struct pregrant_file *file = &files->queues[k];

		file->queue = k;
		snprintf(file->name, sizeof(file->name), "queue%u", k);
		files->attrs[k + 1] = set(file, show_queue);
	}
	files->group.name = "pregrant";
	files->group.attrs = files->attrs;
	files->domain = xenbus_read_unsigned("domid", "", 0);
	dev->files = files;
	if (!sysfs_create_group(&dev->xbdev->dev.kobj, &files->group))
		return;
	dev->files = NULL;
failed:
	free_files(files);
}

/* Called without a lock: it waits for all readers a file. */
void pregrant_files_remove(struct pregrant_device *dev)
{
	if (!dev->files)
		return;
	sysfs_remove_group(&dev->xbdev->dev.kobj, &dev->files->group);
	free_files(dev->files);
	dev->files = NULL;
}
