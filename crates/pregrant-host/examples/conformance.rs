//! The conformance suite on real Xen: one domain, which grants to itself and binds to itself.
//!
//! Root in dom0 or in a guest, with the modules xen-evtchn, xen-gntdev and xen-gntalloc. `cargo
//! xtask rig conformance` runs it in a dom0, a PV guest and a PVH guest.

use pregrant::DomId;
use pregrant::xenstore::Client;
use pregrant_host::UnixTransport;
use pregrant_host::linux::Xen;
use pregrant_loopback::conformance::{self, CaseStatus, Machine};
use std::error::Error;
use std::process::ExitCode;

struct Own(DomId);

impl Machine for Own {
    type Front = Xen;
    type Back = Xen;
    fn pair(&self) -> (Xen, Xen) {
        (self.end(), self.end())
    }
    fn successor(&self) -> Option<Xen> {
        Xen::open(self.0).ok()
    }
    fn cannot_map(&self) -> Option<&'static str> {
        let kind = std::fs::read_to_string("/sys/hypervisor/guest_type").unwrap_or_default();
        // Xen's guest_physmap_add_entry removes the old place of a frame that is added at another
        // one. Seen with 4.17: the kernel's pages are gone, and it falls over.
        (kind.trim() != "PV").then_some(
            "a domain with translated memory that maps a page of its own loses it from where it was; run the suite in PV",
        )
    }
}

impl Own {
    fn end(&self) -> Xen {
        Xen::open(self.0).unwrap_or_else(|e| panic!("{e}"))
    }
}

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let mut xs = Client::new(UnixTransport::find()?);
    let own = xs.read("domid")?;
    let own = DomId(String::from_utf8_lossy(&own).trim().parse()?);
    let first = Xen::open(own)?;
    first.ready_for_back()?;
    first.ready_for_front()?;
    println!("domain {}: {}", own.0, first.describe());
    let outcomes = conformance::run(&Own(own));
    outcomes.iter().for_each(|o| println!("{o}"));
    let failed = outcomes.iter().filter(|o| matches!(o.status, CaseStatus::Fail(_))).count();
    println!("{} cases, {failed} failed", outcomes.len());
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
