//! A queue and a vif, both ends, on a machine within the test: one file for each claim. They are
//! one program, so that what they share (paths, queues, vifs over the local platform) is built
//! once. Miri runs the tests of races and of zero-copy; the others are marked as not for it.
#![cfg(not(loom))]

#[path = "../rig/mod.rs"]
mod rig;
#[path = "../rounds/mod.rs"]
mod rounds;

mod chain_rx;
mod chain_tx;
mod control_ring;
mod data_path;
mod data_path_hostile_back;
mod data_path_race;
mod data_ring;
mod draft_back;
mod failed_add;
mod foreign;
mod frame_hook;
mod front_keys;
mod gref_mapping;
mod gso;
mod guest_copy;
mod halves;
mod in_flight;
mod kept_records;
mod kept_versions;
mod lent;
mod lent_standing;
mod model_front;
mod multicast_extras;
mod named_buffers;
mod netif_rules;
mod netif_rules_rx;
mod offload;
mod one_slot;
mod own_pages;
mod page_pool;
mod pair;
mod persistent;
mod port_room;
mod raw_ring;
mod rx_accepts;
mod rx_by_reference;
mod rx_pool;
mod spurious;
mod staging_heads;
mod staging_path;
mod staging_pool;
mod stale_keys;
mod thresholds;
mod tx_pieces;
mod unwanted;
mod vif_control;
mod vif_control_ring;
mod vif_hotplug;
mod vif_sleep;
mod vif_stages;
mod vif_time;
mod xdp_headroom;
mod xsa_back;
mod xsa_front;
mod xsa_front_reads;
mod xsa_kept_pages;
mod xsa_vif;
