//! How long Xen has run domains, in nanoseconds: `domain_time DOMID...`, a line each. In dom0, as root.
//!
//! In the rig with `--icount` a nanosecond is an instruction, of the domain or of Xen for it.

use pregrant::DomId;
use pregrant_host::linux::domain_time;
use std::process::ExitCode;

fn main() -> ExitCode {
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
