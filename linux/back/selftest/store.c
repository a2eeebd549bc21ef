// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0
/* The test's xenstore: a list of keys, and watches of directories. A transaction is nothing. */
#include <linux/err.h>
#include <linux/list.h>
#include <linux/mutex.h>
#include <linux/slab.h>
#include <linux/string.h>

#include "front.h"

struct entry {
	struct list_head list;
	char *path, *value;
};

static LIST_HEAD(keys);
static LIST_HEAD(watches);
static DEFINE_MUTEX(lock);

static char *path_of(const char *dir, const char *node)
{
	return kasprintf(GFP_KERNEL | __GFP_NOFAIL, "%s/%s", dir, node);
}

static struct entry *find(const char *path)
{
	struct entry *entry;

	list_for_each_entry(entry, &keys, list)
		if (!strcmp(entry->path, path))
			return entry;
	return NULL;
}

static void forget(struct entry *entry)
{
	list_del(&entry->list);
	kfree(entry->path);
	kfree(entry->value);
	kfree(entry);
}

void *store_read(const char *dir, const char *node, unsigned int *len)
{
	char *path = path_of(dir, node), *value = ERR_PTR(-ENOENT);
	struct entry *entry;

	mutex_lock(&lock);
	entry = find(path);
	if (entry)
		value = kstrdup(entry->value, GFP_KERNEL | __GFP_NOFAIL);
	mutex_unlock(&lock);
	kfree(path);
	if (entry && len)
		*len = strlen(value);
	return value;
}

/* The names, and their texts, in one piece of memory. */
char **store_directory(const char *dir, unsigned int *n)
{
	size_t bytes = 0, before = strlen(dir) + 1;
	unsigned int count = 0;
	struct entry *entry;
	char **names, *to;

	mutex_lock(&lock);
	list_for_each_entry(entry, &keys, list) {
		bytes += strlen(entry->path) + 1 + sizeof(char *);
		count++;
	}
	names = kmalloc(bytes + 1, GFP_KERNEL | __GFP_NOFAIL);
	to = (char *)&names[count];
	*n = 0;
	list_for_each_entry(entry, &keys, list) {
		if (strncmp(entry->path, dir, before - 1) || entry->path[before - 1] != '/')
			continue;
		names[(*n)++] = to;
		strcpy(to, entry->path + before);
		to += strlen(to) + 1;
	}
	mutex_unlock(&lock);
	return names;
}

int store_remove(const char *dir, const char *node)
{
	char *path = path_of(dir, node);
	struct entry *entry;

	mutex_lock(&lock);
	entry = find(path);
	if (entry)
		forget(entry);
	mutex_unlock(&lock);
	kfree(path);
	return entry ? 0 : -ENOENT;
}

int store_write(const char *dir, const char *node, const char *format, ...)
{
	char *path = path_of(dir, node), *value;
	struct xenbus_watch *watch;
	struct entry *entry;
	va_list args;

	va_start(args, format);
	value = kvasprintf(GFP_KERNEL | __GFP_NOFAIL, format, args);
	va_end(args);
	mutex_lock(&lock);
	entry = find(path);
	if (!entry) {
		entry = kzalloc(sizeof(*entry), GFP_KERNEL | __GFP_NOFAIL);
		entry->path = kstrdup(path, GFP_KERNEL | __GFP_NOFAIL);
		list_add_tail(&entry->list, &keys);
	}
	kfree(entry->value);
	entry->value = value;
	/* Callbacks only queue a work item. */
	list_for_each_entry(watch, &watches, list) {
		if (!strncmp(path, watch->node, strlen(watch->node)) && watch->will_handle(watch, path, ""))
			watch->callback(watch, path, "");
	}
	mutex_unlock(&lock);
	kfree(path);
	return 0;
}

int store_scan(const char *dir, const char *node, const char *format, ...)
{
	char *value = store_read(dir, node, NULL);
	va_list args;
	int n;

	if (IS_ERR(value))
		return PTR_ERR(value);
	va_start(args, format);
	n = vsscanf(value, format, args);
	va_end(args);
	kfree(value);
	return n ? n : -ERANGE;
}

unsigned int store_number(const char *dir, const char *node, unsigned int otherwise)
{
	unsigned int number;

	return store_scan(dir, node, "%u", &number) == 1 ? number : otherwise;
}

int store_watch(const char *path, struct xenbus_watch *watch,
		bool (*will)(struct xenbus_watch *, const char *, const char *),
		void (*changed)(struct xenbus_watch *, const char *, const char *))
{
	watch->node = path;
	watch->will_handle = will;
	watch->callback = changed;
	mutex_lock(&lock);
	list_add_tail(&watch->list, &watches);
	mutex_unlock(&lock);
	return 0;
}

int store_watch_once(struct xenbus_watch *watch)
{
	INIT_LIST_HEAD(&watch->list);
	watch->callback(watch, watch->node, "");
	return 0;
}

void store_unwatch(struct xenbus_watch *watch)
{
	mutex_lock(&lock);
	list_del_init(&watch->list);
	mutex_unlock(&lock);
}

void store_empty(const char *dir)
{
	struct entry *entry, *next;

	mutex_lock(&lock);
	list_for_each_entry_safe(entry, next, &keys, list)
		if (strstr(entry->path, dir))
			forget(entry);
	mutex_unlock(&lock);
}
