//! A device in plain maps: the keys of both ends without a xenstore.
//!
//! ```text
//!   front: MapBus { own --> map of the front's directory <-- peer } MapBus: back
//!                 { peer -> map of the back's directory  <-- own  }
//! ```

use pregrant::PlatformError;
use pregrant::net::back::BackVif;
use pregrant::net::front::FrontVif;
use pregrant::platform::Platform;
use pregrant::xenbus::XenbusState;
use pregrant::xenbus::bus::DeviceBus;
use pregrant::xenbus::key_source::{KeySource, Pairs};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// The key of an end's error report, which in xenstore is in another directory.
const REPORT: &str = "error";

pub type Dir = Rc<RefCell<BTreeMap<String, String>>>;

/// One end's view of two directories.
pub struct MapBus {
    pub own: Dir,
    pub peer: Dir,
    pub report_fails: bool,
}

impl KeySource for MapBus {
    type Error = String;
    fn text(&mut self, key: &str) -> Result<Option<String>, String> {
        Ok(self.peer.borrow().get(key).cloned())
    }
    fn bad(&self, key: &str, value: &str, expected: &'static str) -> String {
        format!("{key}={value}: {expected}")
    }
    fn refused(&self, why: PlatformError) -> String {
        why.to_string()
    }
}

impl DeviceBus for MapBus {
    fn peer_state(&mut self) -> Result<XenbusState, String> {
        Ok(XenbusState::parse(self.peer.borrow().get("state").map(|s| s.as_bytes())))
    }
    fn set_state(&mut self, state: XenbusState) -> Result<(), String> {
        self.own.borrow_mut().insert("state".into(), state.digit().into());
        Ok(())
    }
    fn publish(&mut self, pairs: &Pairs, stale: fn(&str) -> bool) -> Result<(), String> {
        let mut own = self.own.borrow_mut();
        own.retain(|k, _| !stale(k.split('/').next().unwrap_or(k)));
        own.extend(pairs.iter().cloned());
        Ok(())
    }
    fn own_state(&mut self) -> Result<XenbusState, String> {
        Ok(XenbusState::parse(self.own.borrow().get("state").map(|s| s.as_bytes())))
    }
    fn own_text(&mut self, key: &str) -> Result<Option<String>, String> {
        Ok(self.own.borrow().get(key).cloned())
    }
    fn online(&mut self) -> Result<bool, String> {
        Ok(self.own.borrow().get("online").is_none_or(|text| text != "0"))
    }
    fn report(&mut self, text: &str) -> Result<(), String> {
        if self.report_fails {
            return Err("ENOSPC".into());
        }
        self.own.borrow_mut().insert(REPORT.into(), text.into());
        Ok(())
    }
    fn reported(&mut self) -> Result<Option<String>, String> {
        self.own_text(REPORT)
    }
    fn recant(&mut self) -> Result<(), String> {
        self.own.borrow_mut().remove(REPORT);
        Ok(())
    }
}

/// A device that the toolstack has just created: the front's bus and the back's.
pub fn device() -> (MapBus, MapBus) {
    let (front, back): (Dir, Dir) = Default::default();
    for dir in [&front, &back] {
        dir.borrow_mut().insert("state".into(), "1".into());
    }
    let end = |own: &Dir, peer: &Dir| MapBus { own: own.clone(), peer: peer.clone(), report_fails: false };
    (end(&front, &back), end(&back, &front))
}

/// Makes steps of both ends until neither has anything to do.
pub fn connect<G: Platform, H: Platform>(
    (g, front, fb): (&G, &mut FrontVif<G>, &mut MapBus),
    (h, back, bb): (&H, &mut BackVif<H>, &mut MapBus),
) {
    for _ in 0..8 {
        back.step(h, bb, &mut |_, _| None).expect("an honest front");
        front.step(g, fb).expect("an honest back");
    }
}
