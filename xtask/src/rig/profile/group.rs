//! Groups of functions by purpose: the lines of a profile's tables.
//!
//! By names, the first rule that fits: the kernel's modules say what they are, and so do the
//! beginnings of most of its functions.

/// The name of a group in tables.
pub(super) type Group = &'static str;

pub(super) const OTHERS: Group = "other processes";
pub(super) const UNKNOWN: Group = "without a name";
const OURS: Group = "our process, without its copies";
const OUR_COPIES: Group = "its copies";
const REST: Group = "the kernel's rest";
const XEN_REST: Group = "Xen's rest";

const MODULES: [(&str, Group); 13] = [
    ("xen_netback", "netback"),
    ("xen_netfront", "netfront"),
    ("pregrant", "our module"),
    ("tun", "tun"),
    ("tap", "tun"),
    ("vhost", "vhost"),
    ("vhost_net", "vhost"),
    ("vhost_iotlb", "vhost"),
    ("xen_gntdev", "gntdev and grants"),
    ("xen_evtchn", "reads, writes, polls, events' files"),
    ("bridge", "network and bridge"),
    ("dummy", "network and bridge"),
    ("pktgen", "pktgen"),
];

/// Prefixes of the names of the kernel's other functions; with a `$` the whole name.
const KERNEL: &[(Group, &str)] = &[
    ("gntdev and grants", "gnttab_ __gnttab"),
    (
        "pages of guests mapped",
        "mfn_to_pfn lookup_address set_foreign clear_foreign __set_phys get_phys __raw_callee_save_xen_p \
         xen_pud_val xen_pte_val xen_pmd_val xen_p4d_val m2p_ xen_make_p __xen_pgd",
    ),
    (
        "pages of processes looked up",
        "gup_ pin_user unpin_user internal_get_user __gup get_user_pages try_grab follow_page \
         __get_user_pages lockless_pages try_get_folio gup pud_huge pmd_huge p4d_offset is_valid_gup \
         sanity_check_pinned folio_fast_pin pte_offset ___pte",
    ),
    (
        "io_uring",
        "io_ __io_ ___io __x64_sys_io_uring __do_sys_io_uring tctx_ __tctx need_complete_io kiocb_done \
         loop_rw handle_tw_list ctx_flush_and_put",
    ),
    (
        "the kernel's copies",
        "copy_ _copy_ __copy_ copyin copyout memcpy memmove memset __memcpy __memmove __memset rep_movs \
         rep_stos csum_ __csum do_csum skb_copy __skb_datagram simple_copy clear_page iov_iter \
         __import_iovec import_ skb_store checksum __get_user __put_user __check_object_size __check_heap \
         check_stack_object is_vmalloc_addr __virt_addr_valid memset_orig memcpy_orig",
    ),
    (
        "LSM",
        "security_ apparmor_ aa_ selinux_ tomoyo_ lsm_ cap_ bpf_lsm landlock yama_ kern_ipc_perm \
         hook_file process_measurement common_perm",
    ),
    (
        "entry and exit of the kernel",
        "do_syscall x64_sys_call entry_ syscall_ exit_to_user xen_entry xen_syscall xen_iret xen_sysret \
         xen_hypercall hypercall_page __SCT__ HYPERVISOR asm_ exc_ xen_error irqentry restore_regs \
         xenpv_restore ct_ __ct __rseq load_TLS xen_load_tls xen_asm amd_clear fpregs arch_exit \
         arch_do_signal common_interrupt",
    ),
    (
        "reads, writes, polls, events' files",
        "__x64_sys ksys_ vfs_ new_sync do_iter rw_verify __fget __fdget fput fget ep_ do_epoll __ep poll_ \
         do_poll do_sys_poll __pollwait pollwake eventfd do_select core_sys_select sock_poll unix_poll \
         pipe_ __fsnotify fsnotify file_ do_sys do_pselect do_vfs sockfd lookup_fd get_unused do_writev \
         do_readv __check_fsnotify __do_sys do_loop_readv select_estimate set_user_sigmask put_timespec64 \
         set_normalized timespec64 __get_task_ioprio ____fput __fput blk_start_plug __blk_flush \
         blk_finish_plug iovec_from_user kill_fasync fdget filp_ locks_remove do_fcntl do_compat_epoll \
         epi_",
    ),
    (
        "paths of files looked up",
        "link_path step_into inode_permission generic_permission kernfs dput strcmp __d_lookup d_lookup \
         lookup_fast walk_component path_ do_open do_filp do_dentry strncpy_from d_same mntput mntget \
         legitimize getname putname filldir atime_needs touch_atime current_time nd_jump may_open \
         terminate_walk set_nameidata pick_link d_alloc __d_alloc lockref_get verify_dirent seq_ sysfs_ \
         dev_attr filename_lookup build_open try_to_unlazy __legitimize set_root set_nlink notify_change \
         evict __dentry handle_dots",
    ),
    ("random numbers", "chacha blake2s get_random _get_random __get_random extract_ crng"),
    (
        "scheduler",
        "schedule __schedule preempt_ pick_ __pick enqueue_task enqueue_entity dequeue_ update_ __update \
         try_to_wake ttwu __wake wake_ autoremove default_wake sched_ __sched scheduler_ set_next \
         put_prev switch_ __switch finish_task finish_wait prepare_to kthread futex do_futex native_load \
         load_ newidle place_entity check_preempt resched reweight __calc select_task select_idle \
         add_wait remove_wait activate_task deactivate_task swake __swake complete raw_spin_rq psi_ \
         record_times cpuacct cgroup rb_ xen_load xen_write_msr xen_do_write paravirt xen_start_context \
         xen_end_context xen_mc __xen_mc xen_leave xen_batch do_idle cpu_idle tick_nohz cpuidle \
         default_idle arch_cpu_idle call_cpuidle task_ __task worker process_one queue_work __queue_work \
         kick_ __cond_resched woken_ wait_woken avg_vruntime vruntime entity_ min_vruntime hrtick nohz_ \
         clear_buddies xen_steal steal_ account_ calc_ idle_cpu enter_lazy vtime __enqueue __dequeue \
         requeue_ cpus_share available_idle llist_ wakeup_ wq_ migrate_ set_task_cpu rseq_ need_update \
         cpu_util effective_cpu dl_ xen_smp_send trigger_ run_rebalance __xen_write_cr3 xen_write_cr3 \
         xen_extend_mmuext xen_get_user_pgd blkcg_ check_cfs get_nohz nr_iowait can_stop cr4_update \
         cpupri enqueue_top mm_cid __set_next __rb_ notifier_call arch_scale",
    ),
    (
        "events and interrupts",
        "evtchn __evtchn xen_evtchn __xen_evtchn xen_pv_evtchn __xen_pv xen_hypervisor handle_irq \
         handle_edge handle_percpu handle_soft handle_fasteoi __handle_irq generic_handle irq_ __irq \
         xen_irq xen_send notify_remote do_softirq __do_softirq __softirq softirq raise_ __raise tasklet \
         xen_safe xen_save xen_restore check_events xen_force_evtchn eoi_ lateeoi xen_dynirq ack_ mask_ \
         unmask_ set_evtchn clear_evtchn event_handler note_interrupt add_interrupt fast_mix __radix \
         radix_ dynirq mtree_load",
    ),
    (
        "timers and clocks",
        "hrtimer __hrtimer timer __timer run_timer __run_timers __next_timer tick_ __tick ktime read_tsc \
         pvclock xen_clocksource xen_vcpuop xen_timer clockevents mod_timer __mod_timer timekeeping \
         read_hpet get_time get_timespec native_sched_clock xen_sched_clock local_clock lock_timer_base \
         enqueue_hrtimer __remove_hrtimer __enqueue_hr get_next_timer xen_get_runstate xen_pvclock \
         calc_wheel enqueue_timer internal_add detach_ run_posix profile_tick perf_event_task tsc_verify \
         __get_next_timer fetch_next_timer tmigr ntp_ call_timer",
    ),
    (
        "memory",
        "kmem_ kmalloc __kmalloc __kmem kfree __kfree cache_from slab __slab ___slab __alloc alloc_ free_ \
         __free get_page_from rmqueue __rmqueue page_frag __page_frag put_page __put_page __folio folio \
         release_pages memcg __memcg mem_cgroup __mem_cgroup obj_cgroup prep_ post_alloc get_obj refill_ \
         consume_ drain_ kvfree kvmalloc krealloc deactivate_slab unfreeze __unfreeze put_cpu_partial \
         get_partial handle_mm do_user_addr do_anonymous __handle_mm try_charge __mod_ mod_node mod_zone \
         mod_lruvec should_fail cmpxchg_double policy_ allocate_slab check_spread setup_object \
         __zone_watermark zone_watermark next_zones mempool virt_to_ page_pool napi_alloc_cache \
         get_pfnblock cond_accept __put_partials build_detached extfrag next_zone refresh_cpu_vm \
         quiet_vmstat fold_diff",
    ),
    (
        "network and bridge",
        "skb_ __skb sk_ __sk sock_ __sock tcp_ __tcp ip_ __ip ip4 ip6 ipv4 ipv6 inet __inet dev_ __dev \
         net_ __net netif napi __napi gro_ eth_ icmp __icmp ping_ raw_ nf_ br_ udp __udp fib_ dst_ neigh \
         __neigh arp qdisc __qdisc pfifo sch_ validate_xmit build_skb __build_skb process_backlog \
         enqueue_to_backlog rt_ ipt_ tcp4 llc packet_ tpacket datagram __datagram bictcp cubictcp \
         lock_sock release_sock sys_send fq_ __fq flow_ __flow harmonize passthru xps get_rps rps_ tso_ \
         secure_ rcv_ deliver_ move_addr verify_ mq_ noqueue dql xfrm __xfrm decode_session siphash \
         netdev l3mdev is_skb zerocopy trace_napi bpf_ sockopt copyout_skb rtm bstats find_exception \
         lookup$ in_dev iptunnel __get_hash csum_block warn_crc32c ____sys mld_ igmp __sys_send \
         __sys_recv __sys_connect map_id_range make_kuid from_kuid",
    ),
    (
        "locks, RCU and lists",
        "_raw __raw native_queued rcu_ __rcu mutex __mutex down_ up_ queued_ __lock __local_bh rt_mutex \
         rwsem call_rcu refcount __list lockref osq_",
    ),
    (
        "signals",
        "signal get_signal __send_signal send_signal do_send restore_sig __sig do_sig prepare_signal \
         collect_signal recalc_sig get_sigframe sigprocmask __set_task_blocked save_fp fpu__ \
         set_current_blocked kill_ do_setitimer get_itimer itimer check_kill x64_setup_rt __fpu_ \
         restore_altstack restore_fpregs do_dec_rlimit inc_rlimit sigaction_ uprobe_deny",
    ),
];

const XEN: &[(Group, &str)] = &[
    (
        "Xen's grants and copies",
        "do_grant_table_op gnttab __gnttab grant_ acquire_grant release_grant unmap_ map_grant \
         fixup_status _set_status get_paged active_entry maptrack put_maptrack get_maptrack mapkind copy_ \
         __copy memcpy memmove get_page_from_gfn check_get_page get_page$ put_page$ page_get_owner \
         share_xen p2m_ get_gfn __get_gfn mfn_ __mfn_valid map_domain_page map_guest_l1e \
         unmap_domain_page rcu_lock_domain steal_ nr_grant shared_entry create_grant replace_grant \
         raw_copy __raw_copy get_domain knownalive _get_page _put_page get_page_type put_page_type \
         get_page_and_type is_iomem page_lock page_unlock paging_mark_dirty domain_page clear_grant",
    ),
    (
        "Xen's event channels",
        "do_event_channel evtchn send_guest vcpu_mark_events vcpu_kick notify_via lookup_evtchn \
         vcpu_unblock vcpu_wake _evtchn",
    ),
    (
        "Xen's page tables",
        "do_mmu do_mmuext do_update_va mod_l l1e l2e get_page_from_l put_page_from_l flush_ switch_cr3 \
         write_ptbase new_guest_cr3 update_cr3 make_cr3 toggle_guest pv_destroy do_page_fault fixup_page \
         alloc_l free_l guest_get_eff ptwr mmio_ro pv_ro invalidate update_guest_memory devalidate \
         __do_update_va pv_make_cr4 put_old_guest get_pg_owner",
    ),
    (
        "Xen's scheduler and timers",
        "schedule sched_ csched do_sched do_block vcpu_ _vcpu context_switch __context_switch timer \
         set_timer stop_timer execute_timer reprogram add_entry remove_ up_heap down_heap get_s_time \
         read_tsc do_set_timer do_vcpu_op common_vcpu_op update_runstate _update_runstate \
         update_vcpu_system __update_vcpu update_secondary force_update runq rcu tasklet do_softirq \
         __do_softirq raise_softirq cpu_raise local_time scale_delta init_timer kill_timer migrate \
         paravirt_ctxt continue_ reset_stack load_segments save_segments domain_time do_domctl unit_ \
         update_runq update_svc burn_credits tickle_score __bitmap __find_ unpark np2m ctxt_switch \
         amd_ctxt psr_ctxt svm_load hvm_asid check_wakeup idle_ smp_ lapic apic send_timer collect_time",
    ),
    (
        "Xen's entry and exit",
        "lstar cstar entry int80 sysenter restore_ iret create_bounce test_ process_ compat_ \
         handle_exception pv_hypercall do_multicall do_iret do_stack do_fpu emul pv_emul x86_emul \
         x86_decode do_general common_interrupt do_IRQ ret_from switch_to_kernel do_set_segment \
         do_update_desc hypercall autogen handle_ist pv_inject priv_op set_segment asm_ domain_crash \
         do_device device_not general_protection do_trap search_ page_fault guest_io check_for_livepatch \
         stubs x86emul search_exception extable fixup_exception find_text",
    ),
    ("Xen's locks and returns", "_spin _read _write __x86"),
];

/// All groups, in the order of a table.
pub(super) fn all() -> impl Iterator<Item = Group> {
    let mut seen = Vec::new();
    let listed = [OURS, OUR_COPIES].into_iter().chain(MODULES.iter().map(|(_, group)| *group));
    let named = KERNEL.iter().chain(XEN).map(|(group, _)| *group);
    let listed = listed.chain(named).chain([REST, XEN_REST, OTHERS, UNKNOWN]);
    for group in listed {
        if !seen.contains(&group) {
            seen.push(group);
        }
    }
    seen.into_iter()
}

pub(super) fn of_kernel(name: &str, module: &str) -> Group {
    let module = module.trim_matches(['[', ']']);
    let of_module = MODULES.iter().find(|(known, _)| *known == module).map(|(_, group)| *group);
    of_module.or_else(|| by_name(KERNEL, name)).unwrap_or(REST)
}

pub(super) fn of_xen(name: &str) -> Group {
    by_name(XEN, name).unwrap_or(XEN_REST)
}

pub(super) fn of_ours(name: &str) -> Group {
    let copies = name.starts_with("mem") || name.contains("shm::") || name.contains("compiler_builtins::mem");
    if copies { OUR_COPIES } else { OURS }
}

fn by_name(rules: &[(Group, &str)], name: &str) -> Option<Group> {
    let fits = |word: &str| match word.strip_suffix('$') {
        Some(whole) => name == whole,
        None => name.starts_with(word),
    };
    let rule = rules.iter().find(|(_, words)| words.split_whitespace().any(fits));
    rule.map(|(group, _)| *group)
}

/// Returns the name of a function without the suffixes by which the compiler names its parts.
pub(super) fn plain(name: &str) -> &str {
    name.split_once('.').map_or(name, |(name, _)| if name.is_empty() { "?" } else { name })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_what_a_function_is_for() {
        assert_eq!(of_kernel("xenvif_tx_action", "[xen_netback]"), "netback");
        assert_eq!(of_kernel("io_read", ""), "io_uring");
        assert_eq!(of_kernel("zzz", ""), REST);
        assert_eq!(of_xen("gnttab_copy_one"), "Xen's grants and copies");
        assert_eq!(of_ours("memcpy"), OUR_COPIES);
        assert_eq!(plain("a.part.0"), "a");
        let listed: Vec<Group> = all().collect();
        let each: std::collections::BTreeSet<Group> = all().collect();
        assert!(listed.len() == each.len() && each.contains(of_kernel("io_read", "")), "{listed:?}");
    }
}
