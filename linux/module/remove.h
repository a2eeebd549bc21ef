/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0 */
/*
 * The member `remove` of a struct xenbus_driver, of a function that returns nothing: 6.1-stable
 * changed its return type from int to void.
 */
#ifndef PREGRANT_REMOVE_H
#define PREGRANT_REMOVE_H

#include <xen/xenbus.h>

typedef typeof(((struct xenbus_driver *)NULL)->remove) pregrant_remove_fn;

/* Defines what PREGRANT_REMOVE(function) refers to. */
#define PREGRANT_DEFINE_REMOVE(function)                                        \
	static int __maybe_unused function##_int(struct xenbus_device *xbdev)   \
	{                                                                       \
		function(xbdev);                                                \
		return 0;                                                       \
	}

#define PREGRANT_REMOVE(function)                                                                        \
	__builtin_choose_expr(__builtin_types_compatible_p(pregrant_remove_fn, void (*)(struct xenbus_device *)), \
			      function, function##_int)

#endif
