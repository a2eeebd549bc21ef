# SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0
# For the Kbuild of each module: how Rust's part of it, NAME.core, becomes an object, and which
# kernels it cannot be built for. `module` is the module's name, `keeps` the driver of the kernel that
# such a kernel's vifs stay with.

# What a prebuilt core cannot give a kernel that asks its compiler for it.
ifneq ($(CONFIG_CFI)$(CONFIG_CFI_CLANG)$(CONFIG_FINEIBT),)
  $(error $(module): this kernel checks the type of each function that is called by a pointer (CONFIG_CFI), \
	and the prebuilt core of this module has no types: it cannot be built for this kernel, whose vifs stay with $(keeps))
endif
ifneq ($(filter-out 4 8 11 16,$(if $(CONFIG_CALL_PADDING),$(CONFIG_FUNCTION_PADDING_BYTES))),)
  $(error $(module): this kernel patches $(CONFIG_FUNCTION_PADDING_BYTES) bytes in front of a function (CONFIG_FUNCTION_PADDING_BYTES), \
	and the prebuilt core of this module has 16 there: it cannot be built for this kernel, whose vifs stay with $(keeps))
endif

# kbuild copies no object by itself and has objtool look at it: by if_changed, which writes the
# .cmd file that modpost wants. Where kernels have IBT objtool sees the whole module later; 5.10 has
# other names for it and its options.
objtool_of_core = $(if $(objtool-enabled),$(objtool) $(objtool-args),$(if $(__objtool_obj),$(__objtool_obj) $(objtool_args)))
quiet_cmd_core = CORE    $@
      cmd_core = cp $< $@$(if $(objtool_of_core),; $(objtool_of_core) $@)

# Linked of several files, as objtool sees by itself, and remarks.
$(obj)/%_core.o: objtool-args-y += --link

$(obj)/%_core.o: $(obj)/%.core FORCE
	$(call if_changed,core)
