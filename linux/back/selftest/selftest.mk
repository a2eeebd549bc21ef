# SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0
# pregrant_back_selftest.ko: the back's module, with its own object of Rust and its own files in C, in
# a kernel without Xen, and guests that break the rules. Kbuild reads this file in the copy that
# `cargo xtask linux` makes for it; xen.h, before each file, has the test's stand-ins for Xen.

obj-m := pregrant_back_selftest.o
pregrant_back_selftest-y := $(pregrant_back-y) grant_table.o store.o interrupt.o front.o rules_tx.o rules_rx.o rules_shared.o rules_data_ring.o \
			    rules_vif.o selftest.o
ccflags-y += -include $(here)xen.h
