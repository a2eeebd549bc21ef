//! Fuzz targets, one for each trust boundary: a function over bytes, that panics on what must not
//! be.
//!
//! ```text
//!   fuzz_targets/NAME.rs  (libFuzzer, nightly: `cargo xtask fuzz`)  --+
//!   tests/replay.rs       (stable: `cargo xtask test`)              --+--> TARGETS --> NAME.rs: operations of a Tape
//!   src/bin/replay.rs     (stable: one input)                       --+                  against the code, and its rules
//! ```
//! `corpus/NAME/` has a small set of inputs that reach what is known to be reached,
//! `regressions/NAME/` those that found a mistake, real or planted. A target is deterministic: no
//! clock, no threads, no random numbers.

mod blk_model;
mod blk_ring;
mod guest_pages;
mod lent_pages;
mod own_frames;
mod raw_ring;
/// Only the switch is compiled here: building all of `pregrant-host` would take longer.
#[allow(dead_code, unused_imports)]
#[path = "../../crates/pregrant-host/src/ports"]
mod ports {
    mod mac_table;
    mod segments;
    pub mod switch;
}
mod staged;
mod tape;

mod back_rx;
mod back_tx;
mod blk_back;
mod blk_front;
mod ctrl_ring;
mod data_ring;
mod foreign;
mod front_rx;
mod gref_requests;
mod offload;
mod one_copy;
mod staging_list;
mod xenbus_keys;
mod xs_codec;
mod xs_server;

pub struct Target {
    /// The name of the binary and of the folders.
    pub name: &'static str,
    /// Plays an input; panics when something is wrong.
    pub play: fn(&[u8]),
}

pub const TARGETS: &[Target] = &[
    Target { name: "back_tx", play: back_tx::back_tx },
    Target { name: "back_rx", play: back_rx::back_rx },
    Target { name: "blk_back", play: blk_back::blk_back },
    Target { name: "blk_front", play: blk_front::blk_front },
    Target { name: "ctrl_ring", play: ctrl_ring::ctrl_ring },
    Target { name: "data_ring", play: data_ring::data_ring },
    Target { name: "foreign", play: foreign::foreign },
    Target { name: "front_rx", play: front_rx::front_rx },
    Target { name: "gref_requests", play: gref_requests::gref_requests },
    Target { name: "offload", play: offload::offload },
    Target { name: "one_copy", play: one_copy::one_copy },
    Target { name: "staging_list", play: staging_list::staging_list },
    Target { name: "xenbus_keys", play: xenbus_keys::xenbus_keys },
    Target { name: "xs_codec", play: xs_codec::xs_codec },
    Target { name: "xs_server", play: xs_server::xs_server },
];

/// Returns the target of that name.
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|t| t.name == name)
}

/// Makes libFuzzer's entry of the target with this name.
#[cfg(feature = "libfuzzer")]
#[macro_export]
macro_rules! fuzz {
    ($name:literal) => {
        libfuzzer_sys::fuzz_target!(
            init: assert!($crate::target($name).is_some()),
            |data: &[u8]| {
                if let Some(target) = $crate::target($name) {
                    (target.play)(data);
                }
            }
        );
    };
}
