# What dom0's scenarios see of pages that a back has mapped, and of grants that it uses. Sourced by those, after net.sh.

# mapped: pages of guests that the back has mapped, as its kernel counts them. in_use: grants that somebody uses, by Xen's tables.
mapped() {
	by_module && { pregrant top --prometheus - | awk '/^pregrant_module_mapped_pages/ { pages += $2 } END { print pages + 0 }'; return; }
	_pages=0
	while IFS=' -' read -r _from _to _rest; do
		case $_rest in *gntdev*) _pages=$((_pages + (0x$_to - 0x$_from) / 4096)) ;; esac
	done < "/proc/$BACK_PID/maps"
	echo $_pages
}
in_use() { tables | sed -n 's/.*, \([0-9]*\) grants in use/\1/p'; }
