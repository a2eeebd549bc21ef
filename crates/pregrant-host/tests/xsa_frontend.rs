//! Xen's security advisories on the loop of a guest around its vif: a hostile back that writes keys
//! without end.

use pregrant::DomId;
use pregrant::net::features::BackFeatures;
use pregrant::net::front::{FrontConfig, FrontStep};
use pregrant::platform::local::LocalXen;
use pregrant::xenbus::toolstack::Vif;
use pregrant::xenstore::{Client, Transport};
use pregrant_host::drivers::Frontend;
use pregrant_xenstored::{LocalLink, LocalStore};
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

const GUEST: DomId = DomId(5);
const BACK: DomId = DomId(0);

/// A guest's connection to xenstore. Whenever it checks for more events, the back has just written
/// its state once more.
struct Restless {
    link: LocalLink,
    back: Client<LocalLink>,
    state: String,
    /// None: the back writes nothing.
    writes: Rc<Cell<Option<u32>>>,
}

impl Transport for Restless {
    type Error = &'static str;

    fn send(&mut self, bytes: &[u8]) -> Result<(), Self::Error> {
        self.link.send(bytes)
    }

    fn recv(&mut self, buf: &mut [u8], wait: Option<Duration>) -> Result<usize, Self::Error> {
        if let (Some(n), Some(Duration::ZERO)) = (self.writes.get(), wait) {
            self.writes.set(Some(n + 1));
            assert!(n < 100_000, "one call listens to a back that never rests");
            self.back.write(&self.state, if n % 2 == 0 { "2" } else { "6" }).map_err(|_| "no store")?;
        }
        self.link.recv(buf, wait)
    }
}

#[test]
fn xsa_349_a_back_whose_state_never_rests_does_not_hold_up_its_front() {
    let store = LocalStore::new();
    store.with_server(|s| s.introduce(GUEST)).unwrap();
    let mut toolstack = store.client(BACK);
    let vif = Vif::new(GUEST, BACK, 0, [2, 0, 0, 0, 0, 5]);
    vif.create(&mut toolstack).unwrap();
    for (key, value) in BackFeatures::default().pairs() {
        toolstack.write(&format!("{}/{key}", vif.id.back_dir()), value).unwrap();
    }
    let xen = LocalXen::new();
    let writes = Rc::new(Cell::new(None));
    let link = Restless {
        link: store.link(GUEST),
        back: store.client(BACK),
        state: format!("{}/state", vif.id.back_dir()),
        writes: Rc::clone(&writes),
    };
    let mut front =
        Frontend::new(xen.domain(GUEST.0), Client::new(link), 0, FrontConfig::default(), true).unwrap();
    for _ in 0..20 {
        writes.set(Some(0));
        front.control(Duration::ZERO).unwrap();
    }
    // At rest, and honest: it is served.
    writes.set(None);
    toolstack.write(&format!("{}/state", vif.id.back_dir()), "2").unwrap();
    let front_state = format!("{}/state", vif.id.front_dir());
    while toolstack.read(&front_state).unwrap() != b"4" {
        // It has restarted often enough for some time, and says when it will again.
        front.control(Duration::from_secs(60)).unwrap();
    }
    toolstack.write(&format!("{}/state", vif.id.back_dir()), "4").unwrap();
    let mut came_to = front.control(Duration::ZERO).unwrap();
    while came_to == FrontStep::Waiting && !front.vif().is_live() {
        came_to = front.control(Duration::ZERO).unwrap();
    }
    assert!(front.vif().is_live());
}
