//! The two xenstore directories of a vif, as maps in memory.

use crate::log;
use crate::shim;
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::sync::Arc;
use pregrant::PlatformError;
use pregrant::xenbus::XenbusState;
use pregrant::xenbus::bus::DeviceBus;
use pregrant::xenbus::key_source::{KeySource, Pairs};
use spin::Mutex;

/// The keys in one end's directory.
pub type Directory = Arc<Mutex<BTreeMap<String, String>>>;

/// Creates a directory with state 1, as the toolstack does.
pub fn directory() -> Directory {
    let made = Directory::default();
    write_state(&made, "1");
    made
}

fn write_state(to: &Directory, digit: &str) {
    write(to, "state", digit);
}

/// Writes a key.
#[inline(never)]
pub fn write(to: &Directory, key: &str, value: &str) {
    to.lock().insert(key.into(), value.into());
}

/// The test's xenstore, as one end sees both directories.
pub struct MapBus {
    pub own: Directory,
    pub peer: Directory,
    /// True if the test may make a write of the state fail.
    pub may_fail: bool,
}

fn state(of: &Directory) -> XenbusState {
    XenbusState::parse(of.lock().get("state").map(|s| s.as_bytes()))
}

impl KeySource for MapBus {
    type Error = &'static str;
    fn text(&mut self, key: &str) -> Result<Option<String>, &'static str> {
        Ok(self.peer.lock().get(key).cloned())
    }
    fn bad(&self, _: &str, _: &str, expected: &'static str) -> &'static str {
        expected
    }
    fn refused(&self, why: PlatformError) -> &'static str {
        why.op
    }
}

impl DeviceBus for MapBus {
    fn peer_state(&mut self) -> Result<XenbusState, &'static str> {
        Ok(state(&self.peer))
    }
    fn own_state(&mut self) -> Result<XenbusState, &'static str> {
        Ok(state(&self.own))
    }
    fn own_text(&mut self, key: &str) -> Result<Option<String>, &'static str> {
        Ok(self.own.lock().get(key).cloned())
    }
    fn set_state(&mut self, state: XenbusState) -> Result<(), &'static str> {
        // SAFETY: it counts.
        if self.may_fail && !unsafe { shim::pk_may_allocate(shim::STATE) } {
            return Err("the state cannot be written");
        }
        write_state(&self.own, state.digit());
        Ok(())
    }
    fn publish(&mut self, pairs: &Pairs, stale: fn(&str) -> bool) -> Result<(), &'static str> {
        let mut own = self.own.lock();
        own.retain(|k, _| !stale(k.split('/').next().unwrap_or(k)));
        own.extend(pairs.iter().cloned());
        Ok(())
    }
    fn online(&mut self) -> Result<bool, &'static str> {
        Ok(true)
    }
    fn report(&mut self, text: &str) -> Result<(), &'static str> {
        log::warn(core::ptr::null_mut(), format_args!("selftest: an end says: {text}"));
        Ok(())
    }
    fn reported(&mut self) -> Result<Option<String>, &'static str> {
        Ok(None)
    }
    fn recant(&mut self) -> Result<(), &'static str> {
        Ok(())
    }
}
