//! The cost of a copy into granted memory, depending on where it begins: at a multiple of 64 at
//! both ends, as between our ends; at the same offset in a cache line; at another
//! (docs/decisions/0018).
//!
//! ```text
//!   private bytes, at `from` in a line --copy_in--> a page of a region, at `to` in one
//! ```
//! In the caches of one core, ns each.
//!
//! `cargo run --release -p pregrant-host --example copy_offsets`

use pregrant::GrantRef;
use pregrant::platform::{Access, GrantPool};
use pregrant::shm::SharedBytes;
use pregrant_testkit::two_domains::{HOST, TwoDomains};
use std::hint::black_box;
use std::time::Instant;

const COPIES: u32 = 4096;
const REPEATS: usize = 101;

fn main() {
    let domains = TwoDomains::new();
    let region =
        domains.guest.alloc(HOST, Access::ReadOnly, &mut [GrantRef::NONE; 2]).expect("pages of the guest's");
    let bytes = vec![7u8; 2 * 4096 + 64];
    let start = bytes.as_ptr().align_offset(64);
    for len in [1500, 4000] {
        for (from, to) in [(0, 0), (2, 2), (2, 18), (2, 33)] {
            let mut ns: Vec<f64> = (0..REPEATS)
                .map(|_| {
                    let started = Instant::now();
                    for _ in 0..COPIES {
                        assert!(region.copy_in(to, black_box(&bytes[start + from..][..len])));
                    }
                    started.elapsed().as_nanos() as f64 / f64::from(COPIES)
                })
                .collect();
            ns.sort_by(f64::total_cmp);
            println!("{len} bytes from {from} to {to}: {:.1} ns", ns[REPEATS / 2]);
        }
    }
}
