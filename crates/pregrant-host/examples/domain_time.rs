//! How long Xen has run domains, in nanoseconds: `domain_time DOMID...` prints a line for each. In
//! dom0, as root.
//!
//! In the rig with `--icount` a nanosecond is an instruction, of the domain or of Xen for it. With
//! `--profile` QEMU's plugin (`rig/profile/count.c`) writes down what was executed since the last
//! reading: it waits for an instruction that loads `MARK`.

use pregrant::DomId;
use pregrant_host::linux::domain_time;
use std::process::ExitCode;

const MARK: u64 = u64::from_le_bytes(*b"PREGRANT");

fn main() -> ExitCode {
    std::hint::black_box(MARK);
    for arg in std::env::args().skip(1) {
        let asked = arg.parse().map_err(|_| format!("{arg:?} is no domain's number"));
        match asked.and_then(|domid| domain_time(DomId(domid)).map_err(|e| e.to_string())) {
            Ok(time) => println!("{}", time.as_nanos()),
            Err(e) => {
                eprintln!("domain_time: {e}");
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}
